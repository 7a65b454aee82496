"""``ramen compare``: tables of results with the paper's numbers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.experiments.commands import options
from ramen.experiments.commands.parallel import exit_if_failed, failed, run_all
from ramen.utils.exit_codes import exit_on_error

if TYPE_CHECKING:
    from ramen.experiments.tables.table import Table

KINDS = ("accuracy", "averages", "ranking", "time", "memory", "changes")
_DEFAULT_KINDS = ("accuracy", "averages", "ranking")


@options.with_experiment_options()
def compare(
    *,
    results: Annotated[
        list[Path] | None, typer.Argument(help="Result files, or folders to search for them.")
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="First run what is missing; the options below say what.")
    ] = False,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method to run; repeatable. Default: all of the paper's, or of --tuned."),
    ] = None,
    request: options.ExperimentOptions,
    parallel: options.ParallelOptions,
    store: options.Store = Path("results"),
    table: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(KINDS)} or all; repeatable. Default: {', '.join(_DEFAULT_KINDS)}."),
    ] = None,
    form: options.Format = None,
    out: options.Out = None,
    json_output: options.Json = False,
) -> None:
    """Compare methods in tables like the paper's, next to its numbers."""
    from ramen.experiments.analysis.grouping import collect
    from ramen.experiments.tables.output import choose_format, write

    with exit_on_error():
        chosen = choose_format(form, out)
        kinds = _kinds(table, chosen, json_output)
        if not results and not run:
            raise ValueError("give result files or folders, or --run to run experiments first")
        found = collect(results) if results else None
        own: list[dict[str, Any]] = []
        if run:
            experiments = parallel.check(request).plan(method or _default_methods(request.tuned))
            own = run_all(experiments, store, parallel)
        elif parallel.asked:
            raise ValueError("--jobs and --ray need --run: without it, results are only read")
        made = _tables_of([*(found.results if found else []), *own], kinds)
    for warning in found.warnings if found else []:
        typer.echo(f"warning: {warning}", err=True)
    skipped = _skipped(own)
    for line in skipped:
        typer.echo(f"not run: {line}", err=True)
    if json_output:
        content = [
            {"table": kind, "title": one.title, "notes": one.notes, "rows": one.records} for kind, one in made
        ]
        shown = {"tables": content, "not_run": skipped, "failed": failed(own)}
        typer.echo(json.dumps(shown, indent=2))
    else:
        with exit_on_error():
            write([one for _, one in made], chosen, out)
    exit_if_failed(own)


def _default_methods(tuned: Path | None) -> list[str]:
    """All of the paper's, or all that a search has chosen values for."""
    from ramen.experiments.analysis.paper import TITLES
    from ramen.experiments.tune.tuned_values import TunedValues

    return list(TITLES if tuned is None else TunedValues.read(tuned).chosen)


def _tables_of(results: list[dict[str, Any]], kinds: list[str]) -> list[tuple[str, "Table"]]:
    """As ``make_tables``; none if all that ran has failed."""
    if failed(results) and not any(one["kind"] == "run" for one in results):
        return []
    return make_tables(results, kinds)


def make_tables(results: list[dict[str, Any]], kinds: list[str]) -> list[tuple[str, "Table"]]:
    """The tables of each kind for each setting, setting after setting."""
    from ramen.experiments.analysis.grouping import by_setting, group
    from ramen.experiments.tables.accuracy import accuracy_table, averages_table
    from ramen.experiments.tables.changes import changes_table
    from ramen.experiments.tables.cost import memory_table, time_table
    from ramen.experiments.tables.group_rows import group_rows
    from ramen.experiments.tables.ranking import ranking_table

    tables = accuracy_table, averages_table, ranking_table, time_table, memory_table, changes_table
    makers = dict(zip(KINDS, tables, strict=True))
    runs = [result for result in results if result["kind"] == "run"]
    if not runs:
        raise ValueError("there are no results of runs to compare")
    settings = map(group_rows, by_setting(group(runs)))
    return [(kind, makers[kind](rows)) for rows in settings for kind in kinds]


def _kinds(given: list[str] | None, form: str, json_output: bool) -> list[str]:
    from ramen.utils.checks import choice

    single = form == "csv" and not json_output  # one header for all rows
    kinds = given or (_DEFAULT_KINDS[:1] if single else _DEFAULT_KINDS)
    for kind in kinds:
        choice("--table", kind, (*KINDS, "all"))
    chosen = list(KINDS) if "all" in kinds else list(dict.fromkeys(kinds))
    if single and len(chosen) > 1:
        raise ValueError(
            f"--format csv writes one kind of table, got {', '.join(chosen)}: choose with --table"
        )
    return chosen


def _skipped(results: list[dict[str, Any]]) -> list[str]:
    from ramen.experiments.analysis.paper import title

    left = [one for one in results if one["kind"] == "skipped"]
    return list(dict.fromkeys(f"{title(one['experiment']['method'])}: {one['reason']}" for one in left))
