"""``ramen run`` and ``ramen models``: experiments from the command line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

models_app = typer.Typer(no_args_is_help=True, help="Models: list.")

_Json = Annotated[
    bool, typer.Option("--json", help="Results on standard output, everything else on standard error.")
]


@models_app.callback()
def models() -> None:
    """Keep ``list`` a command while it is the only one."""


@models_app.command("list")
def list_command(
    containing: Annotated[str, typer.Argument(help="Only names with this in them.")] = "",
    json_output: _Json = False,
) -> None:
    """Which models can be named, and which of them presets are made for."""
    from ramen.experiments.models import FORMS, list_models

    found = list_models(containing)
    if json_output:
        typer.echo(json.dumps([{"name": m.name, "presets": list(m.presets)} for m in found], indent=2))
        return
    for model in found:
        used = f"preset {', '.join(model.presets)}" if model.presets else ""
        typer.echo(f"{model.name:48} {used}".rstrip())
    typer.echo("\nA model is named as", err=True)
    for form, meaning in FORMS.items():
        typer.echo(f"  {form:18} {meaning}", err=True)


def run(
    method: Annotated[
        list[str] | None, typer.Option(help="May be given again; `all` for all. Ramen without it.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="ARCH/TAG of open_clip, or as `ramen models list` says; else the preset's."),
    ] = None,
    data: Annotated[str, typer.Option(help="A data set; `ramen data list` shows them.")] = "tiny",
    root: Annotated[Path | None, typer.Option(help="Where the data set lies.")] = None,
    protocol: Annotated[str, typer.Option(help="The order of the stream: mixed, single, ...")] = "mixed",
    seed: Annotated[list[int] | None, typer.Option(min=0, help="May be given again; 0 without it.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds 0, 1, ..., so many.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="PARAMETER=VALUE or METHOD.PARAMETER=VALUE, before the preset's."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="A name, a .toml file, or `none`; else the data set's own.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images in a batch; else the preset's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the stream's first so many images.")] = None,
    per_domain: Annotated[
        int | None, typer.Option(min=1, help="Only so many images of each domain, drawn at random.")
    ] = None,
    severity: Annotated[
        int | None, typer.Option(min=1, max=5, help="Of CIFAR-C and ImageNet-C; else the preset's.")
    ] = None,
    domain: Annotated[list[str] | None, typer.Option(help="A domain; may be given again.")] = None,
    templates: Annotated[str | None, typer.Option(help="A template set; else the preset's.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; cuda if there is one.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of the encoder's weights; float16 on cuda, else float32.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    protocol_set: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE: a parameter of the protocol.")
    ] = None,
    data_set: Annotated[list[str] | None, typer.Option(help="KEY=VALUE: an option of the data set.")] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="How often a run that is under way is saved.")
    ] = 120.0,
    json_output: _Json = False,
) -> None:
    """Run methods on a stream; what is finished is not repeated, what was broken off goes on."""
    from rich.console import Console

    from ramen.experiments.checkpoint import RunningError
    from ramen.experiments.experiment import plan
    from ramen.experiments.runner import run_experiments
    from ramen.experiments.settings import parse_pairs

    console = Console(stderr=True)
    given = {"severity": severity, "domains": domain}
    common = {"limit": limit, "per_domain": per_domain}
    everything = bool(method) and "all" in (method or [])
    device = device or _default_device()
    try:
        planned = plan(
            _methods(method),
            model=model,
            data=data,
            root=root,
            protocol=protocol,
            seeds=_seeds(seed, seeds),
            preset=preset,
            settings=settings or [],
            data_options={**parse_pairs("--data-set", data_set or []), **_given(given)},
            protocol_parameters={**parse_pairs("--protocol-set", protocol_set or []), **_given(common)},
            batch=batch,
            templates=templates,
            device=device,
            dtype=dtype or ("float16" if device.startswith("cuda") else "float32"),
        )
        results = run_experiments(
            planned,
            out,
            console=console,
            checkpoint_seconds=checkpoint_seconds,
            on_missing="skip" if everything else "raise",
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except RunningError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except (ValueError, TypeError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    if json_output:
        typer.echo(json.dumps(results, indent=2))
        return
    Console().print(summary(results))
    typer.echo(f"Results are in {out}", err=True)


def _methods(chosen: list[str] | None) -> list[str]:
    from ramen.methods.registry import list_methods

    return list_methods() if chosen and "all" in chosen else chosen or ["ramen"]


def _seeds(chosen: list[int] | None, count: int | None) -> list[int]:
    if chosen and count is not None:
        raise ValueError("--seed and --seeds say the same: give one of them")
    return list(range(count)) if count is not None else chosen or [0]


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def summary(results: list[dict[str, Any]]) -> "Table":
    """A row for each method, over its seeds."""
    from rich.table import Table

    from ramen.scoring import over_seeds

    table = Table()
    table.add_column("method")
    for column in ("accuracy", "to zero-shot", "repaired", "broken", "ECE", "ms an image"):
        table.add_column(column, justify="right")
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if result["kind"] == "run":
            block = {**result["experiment"], "seed": None}
            groups.setdefault(json.dumps(block, sort_keys=True), []).append(result)
    for group in groups.values():
        scores = [result["scores"] for result in group]
        difference = over_seeds([score["difference"]["points"] for score in scores])
        repaired, broken = (
            over_seeds([score["changes"][kind] for score in scores]).mean for kind in ("repaired", "broken")
        )
        experiment = group[0]["experiment"]
        table.add_row(
            experiment["label"] or experiment["method"],
            str(over_seeds([score["average"] for score in scores])),
            f"{difference.mean:+.2f}",
            f"{repaired:,.0f}",
            f"{broken:,.0f}",
            f"{over_seeds([score['calibration_error'] for score in scores]).mean:.2f}",
            f"{over_seeds([result['cost']['ms_an_image'] for result in group]).mean:.2f}",
        )
    return table
