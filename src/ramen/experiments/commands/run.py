"""``ramen run``: run experiments."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.experiments.commands import options
from ramen.utils.exit_codes import exit_on_error

if TYPE_CHECKING:
    from ramen.experiments.plan.experiment import Experiment
    from ramen.experiments.tables.table import Table
    from ramen.utils.peers import Group


@options.with_experiment_options()
def run(
    *,
    method: Annotated[
        list[str] | None, typer.Option(help="A method, or `all`; repeatable. Default: ramen.")
    ] = None,
    request: options.ExperimentOptions,
    out: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="How often a run is saved on its way.")
    ] = 120.0,
    json_output: options.Json = False,
) -> None:
    """Run methods on a stream. Finished runs are not repeated, interrupted runs resume.

    Under torchrun (`torchrun --nproc-per-node 8 -m ramen run ...`) all processes share each run: one stream,
    one memory.
    """
    from rich.console import Console

    from ramen.experiments.tables.terminal import print_tables
    from ramen.utils.torchrun import is_first_process, torchrun_group

    everything = method is not None and "all" in method
    with _reported_once(), exit_on_error():
        planned = request.plan(_every_method() if everything else method or ["ramen"])
    # with torch, which a usage error does not need
    from ramen.utils.peers import GroupError
    from ramen.utils.reported_once import ReportedElsewhereError

    try:
        with exit_on_error(GroupError), torchrun_group(planned[0].device) as group:
            results = _run(planned, out, checkpoint_seconds, skip_missing=everything, group=group)
    except ReportedElsewhereError:
        return
    if not is_first_process():
        return
    if json_output:
        typer.echo(json.dumps(results, indent=2))
        return
    print_tables(Console(), [summary(results)])
    typer.echo(f"Results are in {out}", err=True)


@contextmanager
def _reported_once() -> Iterator[None]:
    """A block in which all processes make the same mistakes, of which one reports them."""
    from ramen.utils.torchrun import is_first_process

    try:
        yield
    except typer.BadParameter as error:
        if is_first_process():
            raise
        raise typer.Exit(error.exit_code) from None


def _every_method() -> list[str]:
    """All methods, or all that can share a stream if there are several processes."""
    from ramen.methods._registry import get_method, list_methods
    from ramen.utils.torchrun import under_torchrun

    names = list_methods()
    return [name for name in names if get_method(name).joins_groups] if under_torchrun() else names


def _run(
    planned: list["Experiment"], out: Path, checkpoint_seconds: float, *, skip_missing: bool, group: "Group"
) -> list[dict[str, Any]]:
    from rich.console import Console

    from ramen.experiments.run.execute import run_experiments

    return run_experiments(
        planned,
        out,
        console=Console(stderr=True),
        checkpoint_seconds=checkpoint_seconds,
        on_missing="skip" if skip_missing else "raise",
        group=group,
    )


def summary(results: list[dict[str, Any]]) -> "Table":
    """One row per method, over its seeds."""
    from ramen.experiments.analysis.grouping import group
    from ramen.experiments.tables.accuracy import average_column, gain_column
    from ramen.experiments.tables.changes import calibration_column, count_columns
    from ramen.experiments.tables.cost import time_column
    from ramen.experiments.tables.group_rows import group_rows, name_column, seeds_column
    from ramen.experiments.tables.table import Table

    rows = group_rows(group([result for result in results if result["kind"] == "run"]))
    columns = [
        name_column(rows),
        average_column(rows),
        gain_column(rows),
        *count_columns(rows),
        calibration_column(rows),
        time_column(rows),
        seeds_column(rows),
    ]
    return Table.from_columns("", columns)
