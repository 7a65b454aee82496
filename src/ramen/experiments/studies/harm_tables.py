"""The tables of the study of harm."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from ramen.experiments.studies.study_result import HARM_MARK, text_table
from ramen.experiments.tables.table import Table

HARM = -0.5  # points; a gain below this is marked


def gain_table(data: Mapping[str, Any]) -> Table:
    """The mean gain over seeds, with half of its 95 % interval."""
    rows = [
        [
            title,
            f"{fmean(row['zero_shot']):.2f}",
            *(_gain(gain) for gain in row["methods"].values()),
        ]
        for title, row in data["rows"].items()
    ]
    left_out = data["left_out"]
    return text_table(
        f"Points above zero-shot, mean of seeds {', '.join(map(str, data['seeds']))}",
        ["stream", "zero-shot", *data["methods"]],
        rows,
        f"On the same images, in batches of {data['batch']}. First images: of the mixed stream, with a fresh "
        "method after that many. Half of it noise or black: every second image, and only the others count. "
        f"±: half the 95 % interval; without it, no answer changed. {HARM_MARK} marks what is below "
        f"{HARM:g}; if its interval includes 0, it may be noise.",
        *([f"Left out: {', '.join(left_out)}."] if left_out else []),
    )


def worst_table(data: Mapping[str, Any]) -> Table:
    """The gain of the seed with the lowest one."""
    rows = [
        [title, f"{row['images']:,}", *(marked(min(gain["seeds"])) for gain in row["methods"].values())]
        for title, row in data["rows"].items()
    ]
    heads = ["stream", "images", *data["methods"]]
    return text_table(
        "Points above zero-shot, the worst seed", heads, rows, "Images: those that count, of all seeds."
    )


def _gain(gain: Mapping[str, Any]) -> str:
    return marked(gain["points"], gain["margin"] if gain["repaired"] + gain["broken"] else None)


def marked(points: float, margin: float | None = None) -> str:
    """A gain in points, marked if it is harm.

    >>> marked(-0.004, 0.2), marked(-0.51)
    ('+0.00 ± 0.20', '-0.51 !')
    """
    spread = "" if margin is None else f" ± {margin:.2f}"
    return f"{points:+z.2f}{spread}{f' {HARM_MARK}' if points < HARM else ''}"
