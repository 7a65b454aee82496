"""What the commands that run experiments share: options, and the plan that follows from them."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.utils.torchrun import refuse_torchrun

if TYPE_CHECKING:
    from ramen.experiments.plan.experiment import Experiment

Model = Annotated[
    str | None,
    typer.Option(
        help="ARCH/TAG of open_clip, or a form that `ramen models list` shows. Default: the preset's."
    ),
]
Data = Annotated[str, typer.Option(help="A data set; `ramen data list` shows them.")]
Root = Annotated[Path | None, typer.Option(help="The data set's folder or file.")]
Protocol = Annotated[
    str, typer.Option(help="The order of the stream: mixed, single, ... or an alias: non_iid, ...")
]
Seed = Annotated[list[int] | None, typer.Option(min=0, help="A seed; repeatable. Default: 0.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Run this many seeds: 0, 1, ...")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="PARAMETER=VALUE or METHOD.PARAMETER=VALUE; overrides the preset. Repeatable."
    ),
]
Preset = Annotated[
    str | None, typer.Option(help="A preset's name, a .toml file, or `none`. Default: the data set's preset.")
]
Batch = Annotated[int | None, typer.Option(min=1, help="Images per batch. Default: the preset's.")]
Window = Annotated[
    int | None,
    typer.Option(
        min=1, help="Give methods the last so many images with each batch; only the batch's answers count."
    ),
]
Tuned = Annotated[
    Path | None,
    typer.Option(help="A result of `ramen tune`: use the values that it chose. They override the preset."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only this many images from the stream's start.")]
PerDomain = Annotated[
    int | None, typer.Option(min=1, help="Use only this many images of each domain, drawn at random.")
]
Severity = Annotated[
    int | None,
    typer.Option(min=1, max=5, help="The severity of CIFAR-C and ImageNet-C. Default: the preset's."),
]
DomainNames = Annotated[
    list[str] | None, typer.Option("--domain", help="A domain to use; repeatable. Default: all.")
]
Templates = Annotated[str | None, typer.Option(help="A set of prompt templates. Default: the preset's.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ... Default: cuda if available.")]
Dtype = Annotated[
    str | None,
    typer.Option(help="The dtype of the encoder's weights. Default: float16 on cuda, else float32."),
]
ProtocolSet = Annotated[
    list[str] | None, typer.Option(help="KEY=VALUE: a parameter of the protocol. Repeatable.")
]
DataSet = Annotated[list[str] | None, typer.Option(help="KEY=VALUE: an option of the data set. Repeatable.")]
Store = Annotated[Path, typer.Option(help="Folder of results; those that exist are not run again.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="rich, markdown, latex or csv. Default: by the suffix of --out."),
]
Out = Annotated[Path | None, typer.Option(help="A file for the tables, instead of the terminal.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print results as JSON on standard output, all else on standard error.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Run this many at once, each in a process with a GPU or its share of the cores; 0 for one per "
        "GPU, or core. Default: one after the other.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on a Ray cluster: its address, `auto` for the one of this machine, `local` to start one.",
    ),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(min=0, help="With --ray: the GPUs of each run, such as 0.5. Default: 1 on cuda."),
]


@dataclass(frozen=True)
class ExperimentOptions:
    """The options that say which experiments a command runs; the methods are the command's own."""

    model: Model = None
    data: Data = "tiny"
    root: Root = None
    protocol: Protocol = "mixed"
    seed: Seed = None
    seeds: Seeds = None
    settings: Set = None
    preset: Preset = None
    batch: Batch = None
    window: Window = None
    tuned: Tuned = None
    limit: Limit = None
    per_domain: PerDomain = None
    severity: Severity = None
    domain: DomainNames = None
    templates: Templates = None
    device: Device = None
    dtype: Dtype = None
    protocol_set: ProtocolSet = None
    data_set: DataSet = None

    def plan(self, methods: Sequence[str]) -> list["Experiment"]:
        """The experiments with these methods."""
        planned = self.draft(methods)
        # last: it loads torch, which a mistake must not wait for
        from ramen.utils.devices import device_and_dtype_names

        device, dtype = device_and_dtype_names(self.device, self.dtype)
        return [replace(one, device=device, dtype=dtype) for one in planned]

    def draft(self, methods: Sequence[str]) -> list["Experiment"]:
        """The same, with the default device and dtype not yet chosen; every mistake is found here."""
        from ramen.experiments.plan.experiment import plan
        from ramen.experiments.plan.values import parse_pairs
        from ramen.experiments.tune.tuned_values import TunedValues

        if self.seed and self.seeds is not None:
            raise ValueError("--seed and --seeds exclude each other: give one of them")
        options = {"severity": self.severity, "domains": self.domain or None}
        part = {"limit": self.limit, "per_domain": self.per_domain}
        return plan(
            methods,
            model=self.model,
            data=self.data,
            root=self.root,
            protocol=self.protocol,
            seeds=range(self.seeds) if self.seeds is not None else self.seed or (0,),
            settings=self.settings or (),
            preset=self.preset,
            data_options={**parse_pairs("--data-set", self.data_set or ()), **_given(options)},
            protocol_parameters={**parse_pairs("--protocol-set", self.protocol_set or ()), **_given(part)},
            batch=self.batch,
            window=self.window,
            templates=self.templates,
            tuned=None if self.tuned is None else TunedValues.read(self.tuned),
            **_given({"device": self.device, "dtype": self.dtype}),
        )


@dataclass(frozen=True)
class ParallelOptions:
    """The options that say how many runs there are at once, and where."""

    jobs: Jobs = None
    ray: Ray = None
    gpus_per_run: GpusPerRun = None

    @property
    def asked(self) -> bool:
        """Whether runs are to go through a queue, not one after the other in this process."""
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
        device = request.device or ("cuda" if self.gpus_per_run else None)
        if device is not None and device.startswith("cuda:"):
            raise ValueError(
                f"--device must be cuda or cpu with --ray, which chooses the GPU, got {device!r}"
            )
        if self.gpus_per_run and not str(device).startswith("cuda"):
            raise ValueError(f"--gpus-per-run must be 0 on --device {device}, got {self.gpus_per_run:g}")
        return replace(request, device=device)


def with_experiment_options(*own: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a class in place of one parameter.

    ``request`` stands for those of ``ExperimentOptions``, ``parallel`` for those of ``ParallelOptions``.

    Args:
        own: Options that the command declares itself.
    """
    classes = {"request": ExperimentOptions, "parallel": ParallelOptions}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        asked = inspect.signature(command).parameters
        shared = {
            name: [_as_parameter(one) for one in fields(kind) if one.name not in own]
            for name, kind in classes.items()
            if name in asked
        }

        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            filled = {
                name: classes[name](**{one.name: given.pop(one.name) for one in options})
                for name, options in shared.items()
            }
            command(**filled, **given)

        parameters: list[inspect.Parameter] = []
        for parameter in asked.values():
            alone = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
            parameters += shared.get(parameter.name, alone)
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads both
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_options

    return decorate


def _as_parameter(one: Field[Any]) -> inspect.Parameter:
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type
    )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
