"""Tables of accuracies, with the paper's numbers next to the measured ones."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ramen.experiments.analysis.grouping import Group
from ramen.experiments.analysis.paper import Value
from ramen.experiments.analysis.paper_comparison import PaperRow, differs, paper_row
from ramen.experiments.analysis.spread import Spread
from ramen.experiments.tables.group_rows import (
    GroupRow,
    describe_setting,
    group_record,
    name_column,
    seeds_column,
)
from ramen.experiments.tables.paper_columns import emphasis, paper_columns, paper_notes, paper_record
from ramen.experiments.tables.table import (
    Cell,
    Column,
    ColumnCells,
    Emphasis,
    Table,
    spread_cell,
    without_empty_columns,
)

_SHORT_HEADS = {
    "gaussian_noise": "Gauss",
    "shot_noise": "Shot",
    "impulse_noise": "Impul",
    "defocus_blur": "Defoc",
    "glass_blur": "Glass",
    "motion_blur": "Motion",
    "zoom_blur": "Zoom",
    "snow": "Snow",
    "frost": "Frost",
    "fog": "Fog",
    "brightness": "Brit",
    "contrast": "Contr",
    "elastic_transform": "Elast",
    "pixelate": "Pixel",
    "jpeg_compression": "JPEG",
}
AVERAGE = "Avg."
_SPREAD_NOTE = (
    "\u00b1 after an average is the standard deviation over seeds. Above zero-shot: the gain over the same "
    "classifier without adaptation on the same images; \u00b1 is half the 95 % confidence interval over the "
    "images of one run, averaged over seeds."
)


def accuracy_table(rows: Sequence[GroupRow]) -> Table:
    """The paper's layout: one row per method, one column per domain, and the paper's row below each."""
    groups = [row.group for row in rows]
    names = [*_domain_names(groups), AVERAGE]
    printed = [paper_row(group) for group in groups]
    measured = [{**group.domains, AVERAGE: group.average} for group in groups]
    ranks = {name: emphasis([values.get(name) for values in measured]) for name in names}
    body = []
    for number, row in enumerate(rows):
        values, reported = measured[number], _reported_values(printed[number])
        cells = (_measured(values.get(name), reported.get(name), ranks[name][number]) for name in names)
        body.append((row.name_cell, *cells))
        if reported:
            body.append((Cell("  paper", "aside"), *(_reported(reported.get(name)) for name in names)))
    records = [_domain_records(group, one) for group, one in zip(groups, printed, strict=True)]
    return Table(
        f"Accuracy in %: {describe_setting(groups[0])}",
        (Column("Method", "left"), *(Column(short_head(name)) for name in names)),
        tuple(body),
        tuple(paper_notes(rows, printed)),
        tuple(record for part in records for record in part),
    )


def averages_table(rows: Sequence[GroupRow], *, with_domains: bool = False) -> Table:
    """Averages with deviations, the gain over zero-shot, and the paper's averages.

    Args:
        rows: The methods.
        with_domains: Add a column per domain.
    """
    printed = [paper_row(row.group) for row in rows]
    columns = [
        name_column(rows),
        average_column(rows),
        gain_column(rows),
        *paper_columns(rows, printed),
        seeds_column(rows),
        *(_domain_columns(rows) if with_domains else []),
    ]
    table = Table.from_columns(
        f"Averages over domains: {describe_setting(rows[0].group)}",
        columns,
        [*paper_notes(rows, printed), _SPREAD_NOTE],
        [_average_record(row.group, one) for row, one in zip(rows, printed, strict=True)],
    )
    return without_empty_columns(table)


def average_column(rows: Sequence[GroupRow]) -> ColumnCells:
    """Average accuracies, the best ones emphasised."""
    ranks = emphasis([row.group.average for row in rows], decimals=2)
    column = Column("Average", hint="the mean of the domains' accuracies, in percent")
    return column, [
        spread_cell(row.group.average, emphasis=rank) for row, rank in zip(rows, ranks, strict=True)
    ]


def gain_column(rows: Sequence[GroupRow]) -> ColumnCells:
    """Points above zero-shot on the same images, with the margin of one run."""
    column = Column("Above zero-shot", hint="in points, paired on the same images", spread="margin")
    return column, [spread_cell(_gain(row.group), "+z.2f") for row in rows]


def _gain(group: Group) -> Spread:
    return Spread(group.gain.mean, fmean(group.each("scores", "difference", "margin")), 1)


def _domain_columns(rows: Sequence[GroupRow]) -> list[ColumnCells]:
    columns: list[ColumnCells] = []
    for name in _domain_names([row.group for row in rows]):
        values = [row.group.domains.get(name) for row in rows]
        cells = [
            spread_cell(value, ".1f", rank) for value, rank in zip(values, emphasis(values), strict=True)
        ]
        columns.append((Column(name.replace("_", " ")), cells))
    return columns


def _domain_names(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group.domains))


def short_head(domain: str) -> str:
    """A domain's name as a heading, shortened as in the paper."""
    return _SHORT_HEADS.get(domain, domain.replace("_", " "))


def _reported_values(one: PaperRow) -> dict[str, Value]:
    if one.reported is None:
        return {}
    return {**one.reported.domains, AVERAGE: one.reported.average}


def _measured(measured: Spread | None, reported: Value | None, rank: Emphasis | None) -> Cell:
    if measured is None:
        return Cell("")
    marked = reported is not None and differs(measured, reported)
    return Cell(f"{measured.mean:.1f}", rank, marked, value=measured.mean)


def _reported(value: Value | None) -> Cell:
    return Cell("", "aside") if value is None else Cell(f"{value.mean:.1f}", "aside", value=value.mean)


def _domain_records(group: Group, one: PaperRow) -> list[dict[str, Any]]:
    reported = _reported_values(one)
    values = {**group.domains, AVERAGE: group.average}
    return [
        {
            **group_record(group),
            "domain": "average" if name == AVERAGE else name,
            **paper_record(value, reported.get(name)),
            "without_paper": one.reason,
        }
        for name, value in values.items()
    ]


def _average_record(group: Group, one: PaperRow) -> dict[str, Any]:
    printed = None if one.reported is None else one.reported.average
    return {
        **group_record(group),
        **paper_record(group.average, printed),
        "zero_shot": group.zero_shot.mean,
        "gain": group.gain.mean,
        "gain_margin": group.over("scores", "difference", "margin").mean,
        "without_paper": one.reason,
    }
