"""Options of the commands that run experiments, the plan that they ask for, and how errors are told."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ramen.experiments.plan.experiment import Experiment

Model = Annotated[
    str | None,
    typer.Option(help="ARCH/TAG of open_clip, or as `ramen models list` says; else the preset's."),
]
Data = Annotated[str, typer.Option(help="A data set; `ramen data list` shows them.")]
Root = Annotated[Path | None, typer.Option(help="Where the data set lies.")]
Protocol = Annotated[str, typer.Option(help="The order of the stream: mixed, single, ...")]
Seed = Annotated[list[int] | None, typer.Option(min=0, help="May be given again; 0 without it.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds 0, 1, ..., so many.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="PARAMETER=VALUE or METHOD.PARAMETER=VALUE, before the preset's."),
]
Preset = Annotated[str | None, typer.Option(help="A name, a .toml file, or `none`; else the data set's own.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Images in a batch; else the preset's.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the stream's first so many images.")]
PerDomain = Annotated[
    int | None, typer.Option(min=1, help="Only so many images of each domain, drawn at random.")
]
Severity = Annotated[
    int | None, typer.Option(min=1, max=5, help="Of CIFAR-C and ImageNet-C; else the preset's.")
]
DomainNames = Annotated[
    list[str] | None, typer.Option("--domain", help="A domain; may be given again. All without it.")
]
Templates = Annotated[str | None, typer.Option(help="A template set; else the preset's.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...; cuda if there is one.")]
Dtype = Annotated[str | None, typer.Option(help="Of the encoder's weights; float16 on cuda, else float32.")]
ProtocolSet = Annotated[list[str] | None, typer.Option(help="KEY=VALUE: a parameter of the protocol.")]
DataSet = Annotated[list[str] | None, typer.Option(help="KEY=VALUE: an option of the data set.")]
Store = Annotated[Path, typer.Option(help="Folder of the results; those that are there are not run again.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="rich, markdown, latex or csv; by the ending of --out without it."),
]
Out = Annotated[Path | None, typer.Option(help="A file for the tables, instead of the terminal.")]
Json = Annotated[
    bool, typer.Option("--json", help="Results on standard output, everything else on standard error.")
]


@dataclass(frozen=True)
class Request:
    """What the options say of the experiments that a command is to run, all but their methods."""

    model: Model = None
    data: Data = "tiny"
    root: Root = None
    protocol: Protocol = "mixed"
    seed: Seed = None
    seeds: Seeds = None
    settings: Set = None
    preset: Preset = None
    batch: Batch = None
    limit: Limit = None
    per_domain: PerDomain = None
    severity: Severity = None
    domain: DomainNames = None
    templates: Templates = None
    device: Device = None
    dtype: Dtype = None
    protocol_set: ProtocolSet = None
    data_set: DataSet = None

    def planned(self, methods: Sequence[str]) -> list["Experiment"]:
        """The experiments."""
        import torch

        from ramen.experiments.plan.experiment import plan
        from ramen.experiments.plan.values import parse_pairs

        if self.seed and self.seeds is not None:
            raise ValueError("--seed and --seeds say the same: give one of them")
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
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
            templates=self.templates,
            device=device,
            dtype=self.dtype or ("float16" if device.startswith("cuda") else "float32"),
        )


def requested(*own: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose parameter ``request`` stands for the options of ``Request``, all but its ``own``."""
    shared = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in fields(Request)
        if f.name not in own
    ]

    def around(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            request = Request(**{parameter.name: given.pop(parameter.name) for parameter in shared})
            command(request=request, **given)

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            alone = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
            parameters += shared if parameter.name == "request" else alone
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads both
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return around


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def told_errors() -> Iterator[None]:
    """Errors as a command tells them: bad input, a run that is under way elsewhere, a stop by the user."""
    from ramen.experiments.run.checkpoint import RunningError

    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except RunningError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except (ValueError, TypeError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
