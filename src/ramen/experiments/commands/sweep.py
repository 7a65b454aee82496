"""``ramen sweep``: vary one thing, print its table with the paper's numbers, draw its curve."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.experiments.commands import options
from ramen.experiments.commands.parallel import exit_if_failed, failed, run_all
from ramen.utils.exit_codes import exit_on_error

if TYPE_CHECKING:
    from ramen.experiments.analysis.sweep_curve import Sweep
    from ramen.experiments.plan.experiment import Experiment
    from ramen.experiments.plan.variations import Variation
    from ramen.experiments.tables.table import Table

_REFERENCES = ("ensemble", "entmin")


@options.with_experiment_options()
def sweep(
    *,
    vary: Annotated[
        list[str],
        typer.Option(
            help="What to vary: NAME=A,B,... for a parameter of the method or `batch`; capacity, topk, beta, "
            "lr or batch alone for the paper's values; ablation, weights or placement for variants of Ramen. "
            "Repeatable."
        ),
    ],
    method: Annotated[str, typer.Option(help="The method whose parameter is varied.")] = "ramen",
    request: options.ExperimentOptions,
    parallel: options.ParallelOptions,
    store: options.Store = Path("results"),
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the curves. Default: `figures` in the store.")
    ] = None,
    form: options.Format = None,
    out: options.Out = None,
    json_output: options.Json = False,
) -> None:
    """Vary a hyper-parameter or switch off parts of Ramen; zero-shot and EntMin are the references."""
    from rich.console import Console

    from ramen.experiments.plan.variations import experiments, parse_variation
    from ramen.experiments.tables.output import choose_format, write

    with exit_on_error():
        chosen = choose_format(form, out)
        for text in vary:
            parse_variation(text, request.draft([method])[0])  # refuses a mistake before anything is loaded
        asked = parallel.check(request).plan(list(dict.fromkeys([method, *_REFERENCES])))
        bases = [one for one in asked if one.method == method]
        references = [one for one in asked if one.method != method]
        variations = [parse_variation(text, bases[0]) for text in vary]
        points = [experiments(variation, bases) for variation in variations]
        results = _results([one for part in [*points, references] for one in part], store, parallel)
        made = [
            _sweep(variation, part, references, results)
            for variation, part in zip(variations, points, strict=True)
            if any(results[one.key()]["kind"] != "failed" for one in part)
        ]
        with_cost = chosen != "csv" or json_output  # one header for all rows
        tables = [table for sweep, found in made for table in _tables(sweep, found, with_cost)]
        drawn = [_draw(sweep, figures or store / "figures") for sweep, _ in made]
    console = Console(stderr=True)
    for variation in variations:
        console.print(f"{variation.name}: {variation.origin}", highlight=False, soft_wrap=True)
    for path in drawn:
        console.print(f"Figure: {path}", highlight=False, soft_wrap=True)
    if json_output:
        rows = [{"title": table.title, "notes": table.notes, "rows": table.records} for table in tables]
        content = {"tables": rows, "figures": [str(path) for path in drawn]}
        typer.echo(json.dumps({**content, "failed": failed(list(results.values()))}, indent=2))
    else:
        with exit_on_error():
            write(tables, chosen, out)
    exit_if_failed(list(results.values()))


def _results(
    planned: list["Experiment"], store: Path, parallel: options.ParallelOptions
) -> dict[str, dict[str, Any]]:
    """Results by the experiment's key; an experiment that several points share runs once."""
    unique = list({one.key(): one for one in planned}.values())
    found = run_all(unique, store, parallel)
    return {one.key(): result for one, result in zip(unique, found, strict=True)}


def _sweep(
    variation: "Variation",
    points: list["Experiment"],
    references: list["Experiment"],
    results: dict[str, dict[str, Any]],
) -> tuple["Sweep", list[dict[str, Any]]]:
    from ramen.experiments.analysis.sweep_curve import Sweep

    own = [results[one.key()] for one in points]
    for result in own:
        if result["kind"] == "skipped":
            raise ValueError(f"{points[0].method} cannot run here: {result['reason']}")
    lines = [results[one.key()] for one in references]
    return Sweep.from_results([*own, *lines], variation.name, points[0].method), own


def _tables(sweep: "Sweep", results: list[dict[str, Any]], with_cost: bool) -> list["Table"]:
    from ramen.experiments.analysis.grouping import group
    from ramen.experiments.tables.cost import memory_table, time_table
    from ramen.experiments.tables.group_rows import group_rows
    from ramen.experiments.tables.sweeps import sweep_table

    if sweep.parameter != "placement" or not with_cost:
        return [sweep_table(sweep)]
    rows = group_rows(group(results))  # the placement changes what the memory costs, not the answers
    return [sweep_table(sweep), time_table(rows), memory_table(rows)]


def _draw(sweep: "Sweep", folder: Path) -> Path:
    from ramen.experiments.figures.results import draw_sweep

    name = f"{sweep.data}-{sweep.protocol}-{sweep.method}-{sweep.parameter}.png"
    draw_sweep(folder / name, sweep)
    return folder / name
