"""The table of a sweep."""

from collections.abc import Sequence
from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.paper_comparison import differs
from ramen.experiments.analysis.sweep_curve import Point, Sweep
from ramen.experiments.plan.variations import VARIANTS
from ramen.experiments.tables.accuracy import gain_column
from ramen.experiments.tables.cost import time_column
from ramen.experiments.tables.group_rows import GroupRow, linked_cell, seeds_column
from ramen.experiments.tables.paper_columns import MARK_NOTE, difference_cell, emphasis, paper_cell
from ramen.experiments.tables.table import (
    Cell,
    Column,
    ColumnCells,
    Table,
    spread_cell,
    without_empty_columns,
)


def sweep_table(sweep: Sweep, rows: Sequence[GroupRow] | None = None) -> Table:
    """One row per point, then one per method that it is compared with.

    Args:
        sweep: The curve.
        rows: Its points as rows, linked to their settings.
    """
    if rows is None:
        rows = [GroupRow(point.group, point.label) for point in sweep.points]
    points, method = sweep.points, paper.title(sweep.method)
    ranks = emphasis([point.spread for point in points], decimals=2)
    head = Column(sweep.parameter, "left" if sweep.parameter in VARIANTS else "right")
    columns: list[ColumnCells] = [
        (
            head,
            [
                linked_cell(point.label, row, value=_sort_value(point), method=method)
                for point, row in zip(points, rows, strict=True)
            ],
        ),
        (
            Column("Average"),
            [spread_cell(point.spread, emphasis=rank) for point, rank in zip(points, ranks, strict=True)],
        ),
        gain_column(rows),
        (Column("Paper"), [paper_cell(point.printed) for point in points]),
        (Column("Difference"), [difference_cell(point.spread, point.printed) for point in points]),
        time_column(rows),
        seeds_column(rows),
    ]
    where = f"{sweep.data}, {sweep.model}, {sweep.protocol} stream"
    notes = [MARK_NOTE] if any(point.reported is not None for point in points) else []
    notes += [sweep.note] if sweep.note else []
    table = Table.from_columns(f"{sweep.parameter} of {method}: {where}", columns, notes, _records(sweep))
    return without_empty_columns(_with_references(table, sweep))


def _sort_value(point: Point) -> float | None:
    return point.value if isinstance(point.value, int | float) else None


def _with_references(table: Table, sweep: Sweep) -> Table:
    blanks = (Cell(""),) * (len(table.columns) - 2)
    references = tuple(
        (Cell(title, "aside", method=title), Cell(f"{mean:.2f}", value=mean), *blanks)
        for title, mean in sweep.lines.items()
    )
    return Table(table.title, table.columns, table.rows + references, table.notes, table.records)


def _records(sweep: Sweep) -> list[dict[str, Any]]:
    facts = {name: getattr(sweep, name) for name in ("data", "model", "protocol", "method", "parameter")}
    records = [
        {
            **facts,
            "value": point.value,
            "measured": point.mean,
            "deviation": point.deviation,
            "seeds": point.seeds,
            "paper": point.reported,
            "paper_deviation": point.reported_deviation,
            "beyond_deviation": None if point.printed is None else differs(point.spread, point.printed),
        }
        for point in sweep.points
    ]
    lines = [{**facts, "method": title, "measured": mean} for title, mean in sweep.lines.items()]
    return records + lines
