"""Zero-shot in a page's tables, also if nobody ran it: every run records what the classifier does alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from ramen.experiments.analysis.grouping import Group
from ramen.experiments.tables.group_rows import GroupRow

ZERO_SHOT = "ensemble"  # the method that is the classifier itself


def zero_shot_row(rows: Sequence[GroupRow]) -> GroupRow | None:
    """Zero-shot on the images of these runs, as the one with the most seeds recorded it.

    None if zero-shot is among the methods that were run.
    """
    if any(row.group.method == ZERO_SHOT for row in rows):
        return None
    source = max(rows, key=lambda row: len(row.group.seeds))
    group = Group(tuple(map(_zero_shot, source.group.results)))
    return GroupRow(group, "Zero-shot", source.anchor)


def zero_shot_note(rows: Sequence[GroupRow]) -> str:
    """Where the row comes from, in words."""
    source = max(rows, key=lambda row: len(row.group.seeds))
    return (
        "Zero-shot: the same classifier on the same images without adaptation, as recorded with the runs of "
        f"{source.name}."
    )


def _zero_shot(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result that running zero-shot on the same stream gives, as far as tables of accuracy need it."""
    scores = result["scores"]
    return {
        **result,
        "experiment": {**result["experiment"], "method": ZERO_SHOT, "parameters": {}, "label": None},
        "overrides": {},
        "scores": {
            **scores,
            **scores["zero_shot"],
            "difference": {"points": 0.0, "margin": 0.0},
        },
        "composition": None,
    }
