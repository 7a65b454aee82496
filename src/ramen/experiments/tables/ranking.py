"""The table that says who wins: tests over seeds, mean ranks, worst domains, the end of the stream, time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramen.experiments.analysis.grouping import Group
from ramen.experiments.analysis.significance import LEVEL, holm, mean_ranks, paired_p
from ramen.experiments.analysis.spread import over_seeds, worst_tenth
from ramen.experiments.tables.accuracy import average_column
from ramen.experiments.tables.cost import time_column
from ramen.experiments.tables.group_rows import (
    GroupRow,
    describe_setting,
    group_record,
    name_column,
    seeds_column,
)
from ramen.experiments.tables.table import (
    Cell,
    Column,
    ColumnCells,
    Table,
    number_cell,
    spread_cell,
    without_empty_columns,
)

_NOTE = (
    "Tests: Student's paired test over seeds, two-sided, at 5 % after Holm's correction for the number of "
    "rows; with few seeds only large and steady differences pass. Mean rank: over all domains and seeds, 1 "
    "is best. Last tenth and worst windows: accuracy over the end of the stream, and over its worst tenth."
)


@dataclass(frozen=True)
class _Verdict:
    """What a test says about a row, compared with something else."""

    points: float  # the mean difference
    p: float | None

    def cell(self, better: str, same: str, worse: str) -> Cell:
        """The verdict in words; nothing without a test."""
        if self.p is None:
            return Cell("")
        word = same if self.p >= LEVEL else better if self.points > 0 else worse
        return Cell(f"{word} (p {_p_text(self.p)})", value=self.p)


def ranking_table(rows: Sequence[GroupRow]) -> Table:
    """One row per method."""
    groups = [row.group for row in rows]
    gains = _verdicts([group.each("scores", "difference", "points") for group in groups])
    best = max(groups, key=lambda group: group.average.mean)
    behind = _verdicts([[] if group is best else _differences(group, best) for group in groups])
    ranks = mean_ranks([_cases(group) for group in groups])
    worst = [_worst_domain(group) for group in groups]
    columns: list[ColumnCells] = [
        name_column(rows),
        average_column(rows),
        (
            Column("Than zero-shot", "left", hint="tested over seeds"),
            [one.cell("better", "no different", "worse") for one in gains],
        ),
        (
            Column("Than the best", "left", hint="tested over seeds in common"),
            [
                Cell("best") if group is best and len(groups) > 1 else one.cell("better", "tie", "worse")
                for group, one in zip(groups, behind, strict=True)
            ],
        ),
        (Column("Mean rank", hint="over domains and seeds"), [number_cell(rank) for rank in ranks]),
        (
            Column("Worst domain", "left"),
            [Cell(f"{value:.2f} {name}", value=value) for name, value in worst],
        ),
        (
            Column("Worst seed", hint="the mean of the worst tenth of seeds, at least one"),
            [number_cell(_worst_seeds(group)) for group in groups],
        ),
        _tail_column(groups, "Last tenth", "last"),
        _tail_column(groups, "Worst windows", "worst"),
        time_column(rows),
        seeds_column(rows),
    ]
    records = [
        {
            **_record(group, best),
            "gain": gain.points,
            "gain_p": gain.p,
            "behind_best": other.points,
            "behind_best_p": other.p,
            "mean_rank": rank,
        }
        for group, gain, other, rank in zip(groups, gains, behind, ranks, strict=True)
    ]
    title = f"Who wins: {describe_setting(groups[0])}"
    return without_empty_columns(Table.from_columns(title, columns, [_NOTE], records))


def _record(group: Group, best: Group) -> dict[str, Any]:
    """What a row says of its method alone."""
    name, value = _worst_domain(group)
    return {
        **group_record(group),
        "average": group.average.mean,
        "best": group is best,
        "worst_domain": name,
        "worst_domain_accuracy": value,
        "worst_seeds": _worst_seeds(group),
        "last_tenth": _tail_mean(group, "last"),
        "worst_windows": _tail_mean(group, "worst"),
        "ms_an_image": group.over("cost", "ms_an_image").mean,
    }


def _worst_domain(group: Group) -> tuple[str, float]:
    """Its name and accuracy."""
    means = {name: value.mean for name, value in group.domains.items()}
    return min(means.items(), key=lambda item: item[1])


def _verdicts(differences: Sequence[Sequence[float]]) -> list[_Verdict]:
    """One per row, allowing for the number of rows that are tested; a row that is never different is not."""
    adjusted = holm([paired_p(values) if any(values) else None for values in differences])
    points = [over_seeds(values).mean if values else 0.0 for values in differences]
    return [_Verdict(mean, p) for mean, p in zip(points, adjusted, strict=True)]


def _differences(group: Group, best: Group) -> list[float]:
    """The averages minus those of the best row, for the seeds that both have."""
    own, other = (dict(zip(one.seeds, one.each("scores", "average"), strict=True)) for one in (group, best))
    return [own[seed] - other[seed] for seed in own if seed in other]


def _cases(group: Group) -> dict[object, float]:
    """The accuracy on each domain for each seed."""
    runs = zip(group.seeds, group.each("scores", "domains"), strict=True)
    return {(seed, name): value for seed, domains in runs for name, value in domains.items()}


def _worst_seeds(group: Group) -> float | None:
    """None for one seed, whose average says it already."""
    averages = group.each("scores", "average")
    return worst_tenth(averages) if len(averages) > 1 else None


def _tail_column(groups: Sequence[Group], head: str, name: str) -> ColumnCells:
    values = [group.known("scores", "tail", name) for group in groups]
    return Column(head), [spread_cell(None if one is None else over_seeds(one)) for one in values]


def _tail_mean(group: Group, name: str) -> float | None:
    values: list[Any] | None = group.known("scores", "tail", name)
    return None if values is None else over_seeds(values).mean


def _p_text(p: float) -> str:
    """A p-value as it is printed.

    >>> _p_text(0.0004), _p_text(0.0312)
    ('< 0.001', '0.031')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
