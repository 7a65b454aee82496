"""The table of what a method changes: answers repaired and broken, and whether its confidence is right."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ramen.experiments.analysis.grouping import Group
from ramen.experiments.analysis.spread import Spread, over_seeds
from ramen.experiments.tables.group_rows import GroupRow, describe_setting, group_record, name_column
from ramen.experiments.tables.table import (
    Column,
    ColumnCells,
    Table,
    number_cell,
    spread_cell,
    without_empty_columns,
)

_NOTE = (
    "Repaired: zero-shot is wrong, the method is right; broken: the other way round. Refused: answered "
    "zero-shot because something about the image was not finite. Images and refused count all seeds."
)
_KINDS = ("both_right", "repaired", "broken", "both_wrong")


def changes_table(rows: Sequence[GroupRow]) -> Table:
    """Repaired and broken answers in percent of the images, balanced accuracy and calibration."""
    records = [_record(row.group) for row in rows]
    columns: list[ColumnCells] = [
        name_column(rows),
        (Column("Images"), [number_cell(sum(one[kind] for kind in _KINDS), ",d") for one in records]),
        *_share_columns([row.group for row in rows]),
        _score_column(rows, "Balanced accuracy, %", "the mean over classes", "balanced"),
        calibration_column(rows),
        _score_column(
            rows, "Zero-shot's, %", "zero-shot's calibration error", "zero_shot", "calibration_error"
        ),
        (Column("Refused"), [number_cell(record["refused"], ",d") for record in records]),
    ]
    title = f"Changed answers: {describe_setting(rows[0].group)}"
    return without_empty_columns(Table.from_columns(title, columns, [_NOTE], records))


def change_shares(group: Group, kind: str) -> list[float]:
    """Repaired or broken images of each run, in percent of its images."""
    return [100 * counts[kind] / max(1, sum(counts.values())) for counts in group.each("scores", "changes")]


def count_columns(rows: Sequence[GroupRow]) -> list[ColumnCells]:
    """How many answers were repaired and broken, averaged over seeds."""
    return [
        (
            Column(kind.capitalize()),
            [number_cell(fmean(row.group.each("scores", "changes", kind)), ",.0f") for row in rows],
        )
        for kind in ("repaired", "broken")
    ]


def calibration_column(rows: Sequence[GroupRow]) -> ColumnCells:
    """Expected calibration errors."""
    hint = "expected calibration error, 15 bins"
    return _score_column(rows, "Calibration error, %", hint, "calibration_error")


def _share_columns(groups: Sequence[Group]) -> list[ColumnCells]:
    repaired, broken = ([change_shares(group, kind) for group in groups] for kind in ("repaired", "broken"))
    net = [[up - down for up, down in zip(*pair, strict=True)] for pair in zip(repaired, broken, strict=True)]
    ratios = [
        fmean(ups) / fmean(downs) if fmean(downs) else None
        for ups, downs in zip(repaired, broken, strict=True)
    ]
    return [
        (
            Column("Repaired, %", hint="of all images: zero-shot is wrong, the method is right"),
            [spread_cell(over_seeds(shares)) for shares in repaired],
        ),
        (
            Column("Broken, %", hint="of all images: zero-shot is right, the method is wrong"),
            [spread_cell(over_seeds(shares)) for shares in broken],
        ),
        (Column("Net, %"), [spread_cell(over_seeds(shares), "+z.2f") for shares in net]),
        (Column("Repaired / broken"), [number_cell(ratio) for ratio in ratios]),
    ]


def _score_column(rows: Sequence[GroupRow], head: str, hint: str, *path: str) -> ColumnCells:
    return Column(head, hint=hint), [spread_cell(_score(row.group, path)) for row in rows]


def _score(group: Group, path: Sequence[str]) -> Spread | None:
    values = group.known("scores", *path)
    return None if values is None else over_seeds([float(value) for value in values])


def _record(group: Group) -> dict[str, Any]:
    runs = group.each("scores", "changes")
    counts = {kind: sum(run[kind] for run in runs) for kind in runs[0]}
    return {**group_record(group), **counts, "refused": sum(group.known("scores", "refused") or [0])}
