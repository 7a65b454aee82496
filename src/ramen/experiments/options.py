"""What the commands that run experiments share: options, and the plan that follows from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ramen.experiments.experiment import Experiment, plan
from ramen.utils.commands import FieldsOf, refuse_torchrun

StoreFolder = Annotated[Path, typer.Option(help="Folder of results; those that exist are not run again.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print results as JSON on standard output, all else on standard error.")
]


@dataclass(frozen=True)
class ExperimentOptions:
    """Which experiments a command runs; the methods are the command's own.

    Attributes:
        fields: Those of ``Experiment`` that are given.
    """

    fields: Annotated[Mapping[str, Any], FieldsOf(Experiment)] = field(default_factory=dict)
    seed: Annotated[list[int] | None, typer.Option(min=0, help="A seed; repeatable. Default: 0.")] = None
    seeds: Annotated[int | None, typer.Option(min=1, help="Run this many seeds: 0, 1, ...")] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="PARAMETER=VALUE or METHOD.PARAMETER=VALUE; overrides the preset. Repeatable."
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(help="A preset's name, a .toml file, or `none`. Default: the data set's preset."),
    ] = None
    tuned: Annotated[
        Path | None,
        typer.Option(help="A result of `ramen tune`: use the values it chose. They override the preset."),
    ] = None
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only this many images from the stream's start.")
    ] = None
    per_domain: Annotated[
        int | None, typer.Option(min=1, help="Use only this many images of each domain, drawn at random.")
    ] = None
    severity: Annotated[
        int | None,
        typer.Option(min=1, max=5, help="The severity of CIFAR-C and ImageNet-C. Default: the preset's."),
    ] = None
    domain: Annotated[list[str] | None, typer.Option(help="A domain to use; repeatable. Default: all.")] = (
        None
    )

    def plan(self, methods: Sequence[str]) -> list[Experiment]:
        """The experiments with these methods."""
        planned = self.draft(methods)
        # last: it loads torch, which a mistake must not wait for
        from ramen.utils.devices import device_and_dtype_names

        device, dtype = device_and_dtype_names(self.fields.get("device"), self.fields.get("dtype"))
        return [replace(one, device=device, dtype=dtype) for one in planned]

    def draft(self, methods: Sequence[str]) -> list[Experiment]:
        """The same, with the default device and dtype not yet chosen; every mistake is found here."""
        from ramen.experiments.tune import TunedValues

        if self.seed and self.seeds is not None:
            raise ValueError("--seed and --seeds exclude each other: give one of them")
        options = {"severity": self.severity, "domains": self.domain or None}
        part = {"limit": self.limit, "per_domain": self.per_domain}
        merged = {
            "data_options": {**self.fields.get("data_options", {}), **_given(options)},
            "protocol_parameters": {**self.fields.get("protocol_parameters", {}), **_given(part)},
        }
        return plan(
            methods,
            seeds=range(self.seeds) if self.seeds is not None else self.seed or (0,),
            settings=self.settings or (),
            preset=self.preset,
            tuned=None if self.tuned is None else TunedValues.read(self.tuned),
            **{**self.fields, **merged},
        )


@dataclass(frozen=True)
class ParallelOptions:
    """How many runs there are at once, and where."""

    jobs: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Run this many at once, each in a process with a GPU or its share of the cores; 0 for one "
            "per GPU, or core. Default: one after the other.",
        ),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on a Ray cluster: its address, `auto` for this machine's, `local` to start one.",
        ),
    ] = None
    gpus_per_run: Annotated[
        float | None,
        typer.Option(min=0, help="With --ray: the GPUs of each run, such as 0.5. Default: 1 on cuda."),
    ] = None

    @property
    def asked(self) -> bool:
        """Whether runs are to happen in other processes."""
        return self.jobs is not None or self.ray is not None

    def check(self, request: ExperimentOptions) -> ExperimentOptions:
        """Refuse what cannot be; the request on a GPU, if the runs are to have one."""
        refuse_torchrun(
            "a command with many runs", "start it once; --jobs and --ray use more than one GPU or core"
        )
        if self.jobs is not None and self.ray is not None:
            raise ValueError("--jobs and --ray exclude each other: give one of them")
        if self.ray is None:
            if self.gpus_per_run is not None:
                raise ValueError(f"--gpus-per-run needs --ray, got {self.gpus_per_run:g} without it")
            return request
        device = request.fields.get("device") or ("cuda" if self.gpus_per_run else None)
        if device is not None and device.startswith("cuda:"):
            raise ValueError(
                f"--device must be cuda or cpu with --ray, which chooses the GPU, got {device!r}"
            )
        if self.gpus_per_run and not str(device).startswith("cuda"):
            raise ValueError(f"--gpus-per-run must be 0 on --device {device}, got {self.gpus_per_run:g}")
        return replace(request, fields={**request.fields, **_given({"device": device})})


@dataclass(frozen=True)
class OutputOptions:
    """How a command shows its tables."""

    form: Annotated[
        str | None,
        typer.Option("--format", help="rich, markdown, latex or csv. Default: by the suffix of --out."),
    ] = None
    out: Annotated[Path | None, typer.Option(help="A file for the tables, instead of the terminal.")] = None
    json: Json = False

    def __post_init__(self) -> None:
        """Refuse a format that is not known."""
        _ = self.chosen

    @property
    def chosen(self) -> str:
        """The format."""
        from ramen.experiments.render import choose_format

        return choose_format(self.form, self.out)

    @property
    def single(self) -> bool:
        """Whether there is one header for all rows."""
        return self.chosen == "csv" and not self.json


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
