"""The paper's numbers in tables: cells, columns and notes."""

from collections.abc import Sequence
from typing import Any

from ramen.experiments.analysis.paper import Value
from ramen.experiments.analysis.paper_comparison import RULE, PaperRow, differs
from ramen.experiments.analysis.spread import Spread
from ramen.experiments.tables.group_rows import GroupRow
from ramen.experiments.tables.table import MARK, Cell, Column, ColumnCells, Emphasis

MARK_NOTE = f"{MARK} {RULE}"


def emphasis(values: Sequence[Spread | None], decimals: int = 1) -> list[Emphasis | None]:
    """Which values of a column are best and second best, as they are printed; none if there is only one.

    >>> emphasis([Spread(1.0, None, 1), Spread(3.01, None, 1), Spread(3.0, None, 1), Spread(2.0, None, 1)])
    [None, 'best', 'best', 'second']
    """
    shown = [None if value is None else round(value.mean, decimals) for value in values]
    ranks = sorted({value for value in shown if value is not None}, reverse=True)
    names: dict[float | None, Emphasis] = {}
    if len(ranks) > 1:
        names[ranks[0]] = "best"
    if len(ranks) > 2:
        names[ranks[1]] = "second"
    return [None if value is None else names.get(value) for value in shown]


def value_text(value: Value) -> str:
    """A number of the paper's with the decimals that it is printed with.

    >>> value_text(Value(46.1, 0.1)), value_text(Value(46.04, 0.08)), value_text(Value(35.8))
    ('46.1 ± 0.1', '46.04 ± 0.08', '35.8')
    """
    tenths = all(number is None or round(number, 1) == number for number in (value.mean, value.deviation))
    decimals = 1 if tenths else 2
    mean = f"{value.mean:.{decimals}f}"
    return mean if value.deviation is None else f"{mean} \u00b1 {value.deviation:.{decimals}f}"


def paper_cell(value: Value | None, *, hint: str | None = None) -> Cell:
    """A number of the paper's."""
    if value is None:
        return Cell("", hint=hint)
    return Cell(value_text(value), "aside", value=value.mean, deviation=value.deviation, hint=hint)


def difference_cell(measured: Spread, printed: Value | None, *, hint: str | None = None) -> Cell:
    """Measured minus printed, marked if it goes beyond the deviations."""
    if printed is None:
        return Cell("", hint=hint)
    difference = measured.mean - printed.mean
    marked = differs(measured, printed)
    return Cell(f"{difference:+z.2f}", marked=marked, value=difference, hint=RULE if marked else None)


def paper_columns(rows: Sequence[GroupRow], printed: Sequence[PaperRow]) -> list[ColumnCells]:
    """The paper's averages, and the differences to them."""
    averages = [None if one.reported is None else one.reported.average for one in printed]
    return [
        (
            Column("Paper", hint="the average that the paper reports"),
            [paper_cell(value, hint=_source(one)) for value, one in zip(averages, printed, strict=True)],
        ),
        (
            Column("Difference", hint="measured minus the paper's"),
            [
                difference_cell(row.group.average, value, hint=one.reason)
                for row, value, one in zip(rows, averages, printed, strict=True)
            ],
        ),
    ]


def _source(one: PaperRow) -> str | None:
    if one.reported is None:
        return one.reason
    return one.reported.source + (f": {one.reported.note}" if one.reported.note else "")


def paper_notes(rows: Sequence[GroupRow], printed: Sequence[PaperRow]) -> list[str]:
    """What a table with the paper's numbers must say: what the mark means, what is missing and why."""
    notes = [MARK_NOTE] if any(one.reported for one in printed) else []
    reasons: dict[str, list[str]] = {}
    for row, one in zip(rows, printed, strict=True):
        if one.reason is not None:
            reasons.setdefault(one.reason, []).append(row.name)
        elif one.reported is not None and one.reported.note is not None:
            notes.append(f"{row.name}, the paper's number ({one.reported.source}): {one.reported.note}.")
    for reason, names in reasons.items():
        of_whom = "" if len(names) == len(rows) else f" for {', '.join(names)}"
        notes.append(f"Without the paper's numbers{of_whom}: {reason}.")
    return notes


def paper_record(measured: Spread, printed: Value | None) -> dict[str, Any]:
    """The part of a record with a measured number and the paper's."""
    return {
        "measured": measured.mean,
        "deviation": measured.deviation,
        "paper": None if printed is None else printed.mean,
        "paper_deviation": None if printed is None else printed.deviation,
        "difference": None if printed is None else measured.mean - printed.mean,
        "beyond_deviation": None if printed is None else differs(measured, printed),
    }
