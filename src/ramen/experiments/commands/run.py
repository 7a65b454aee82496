"""``ramen run``: experiments from the command line."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.experiments.commands import options

if TYPE_CHECKING:
    from rich.table import Table


@options.requested()
def run(
    *,
    method: Annotated[
        list[str] | None, typer.Option(help="May be given again; `all` for all. Ramen without it.")
    ] = None,
    request: options.Request,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="How often a run that is under way is saved.")
    ] = 120.0,
    json_output: options.Json = False,
) -> None:
    """Run methods on a stream; what is finished is not repeated, what was broken off goes on."""
    from rich.console import Console

    from ramen.experiments.run.execute import run_experiments
    from ramen.methods._registry import list_methods

    everything = method is not None and "all" in method
    with options.told_errors():
        planned = request.planned(list_methods() if everything else method or ["ramen"])
        results = run_experiments(
            planned,
            out,
            console=Console(stderr=True),
            checkpoint_seconds=checkpoint_seconds,
            on_missing="skip" if everything else "raise",
        )
    if json_output:
        typer.echo(json.dumps(results, indent=2))
        return
    Console().print(summary(results))
    typer.echo(f"Results are in {out}", err=True)


def summary(results: list[dict[str, Any]]) -> "Table":
    """A row for each method, over its seeds."""
    from rich.table import Table

    from ramen.experiments.analysis.scoring import over_seeds

    table = Table()
    table.add_column("method")
    for column in ("accuracy", "to zero-shot", "repaired", "broken", "ECE", "ms an image"):
        table.add_column(column, justify="right", no_wrap=column == "accuracy")
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
