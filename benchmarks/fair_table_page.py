"""The tables of ``docs/fair_table.md``, from the results of ``benchmarks/fair_table.py``.

    python benchmarks/fair_table_page.py            # print them
    python benchmarks/fair_table_page.py --write    # put them into the page, between its comments

A model whose results are not there yet has no tables; its file simply adds them.
"""

import argparse
import json
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fair_table_streams import EACH_BY_ITSELF, STREAMS

from ramen.experiments.significance import LEVEL, holm, mean_ranks, paired_p

ROOT = Path(__file__).resolve().parent
PAGE = ROOT.parent / "docs" / "fair_table.md"
FILES = {  # what a later one has of a method on a stream replaces what an earlier one has
    "tiny": ("fair_table_tiny_h200.json", "fair_table_tiny_rest_h200.json"),
    "small": ("fair_table_small_clip_cifar10c_h200.json", "fair_table_small_clip_cifar10c_rest_h200.json"),
}
COST = "cost_vit_b_16_h200_fp16.json"
ZERO_SHOT = "ensemble"
_COLLAPSE = 10.0  # points that the last tenth of the stream is below that of zero-shot
_BOTH_SIDES = 0.5  # the share of a loss that two domains make up, to name them as its place
_NOTHING = 0.005  # points
_FEW = 3  # answers per seed
_HEADS = {
    "mixed": "mixed",
    "single": "single domains",
    "correlated": "correlated labels",
    "one": "one at a time",
}


@dataclass(frozen=True)
class Row:
    """The test runs of a method on a stream, one per seed, and its search."""

    method: str
    tests: Sequence[dict[str, Any]]
    search: dict[str, Any]
    search_zero_shot: float

    @cached_property
    def gains(self) -> list[float]:
        """Points over zero-shot for each seed, on the same images in the same order."""
        return [test["average"] - test["zero_shot"] for test in self.tests]

    @property
    def average(self) -> float:
        """Accuracy over domains and seeds."""
        return statistics.fmean(test["average"] for test in self.tests)

    @property
    def gain(self) -> float:
        """Its mean."""
        return statistics.fmean(self.gains)

    @property
    def domain_gains(self) -> dict[str, float]:
        """The gain on each domain, the largest loss first."""
        names = self.tests[0]["domains"]
        found = {
            name: statistics.fmean(
                test["domains"][name] - test["zero_shot_domains"][name] for test in self.tests
            )
            for name in names
        }
        return dict(sorted(found.items(), key=lambda item: item[1]))

    @property
    def worst_domain(self) -> tuple[str, float]:
        """The domain of the lowest accuracy, and this."""
        names = self.tests[0]["domains"]
        means = {name: statistics.fmean(test["domains"][name] for test in self.tests) for name in names}
        return min(means.items(), key=lambda item: item[1])

    def count(self, change: str) -> int:
        """How many answers of all seeds were so changed: "repaired" or "broken"."""
        return sum(test["changes"][change] for test in self.tests)

    @property
    def tail(self) -> float:
        """Accuracy over the last tenth of the stream."""
        return statistics.fmean(test["tail"]["last"] for test in self.tests)

    @property
    def best_of_search(self) -> float:
        """Points over zero-shot of the setting that was chosen, on the stream of the search."""
        return float(max(self.search["accuracies"])) - self.search_zero_shot

    @property
    def chosen(self) -> str:
        """What was chosen, in words."""
        return ", ".join(f"{name} {_plain(value)}" for name, value in self.search["chosen"].items())


class StreamRows:
    """All methods on one stream.

    Args:
        stream: Its part of the results.
    """

    def __init__(self, stream: dict[str, Any]) -> None:
        searches = stream["searches"]
        by_method: dict[str, list[dict[str, Any]]] = {}
        for test in sorted(stream["tests"], key=lambda test: test["seed"]):
            by_method.setdefault(test["method"], []).append(test)
        self.rows = {
            name: Row(name, tests, searches["methods"][name], _search_zero_shot(searches, name))
            for name, tests in by_method.items()
            if len(tests) == len(by_method[ZERO_SHOT])  # otherwise the time was over before the last seed
        }

    @cached_property
    def p_values(self) -> dict[str, tuple[float | None, float | None]]:
        """Of the paired test over seeds against zero-shot: as it is, and after Holm's correction."""
        plain = [paired_p(row.gains) if any(row.gains) else None for row in self.rows.values()]
        return dict(zip(self.rows, zip(plain, holm(plain), strict=True), strict=True))

    def mark(self, method: str) -> str:
        """▲ or ▼ if the test says so after the correction, △ or ▽ if only without it."""
        plain, corrected = self.p_values[method]
        up = self.rows[method].gain > 0
        if corrected is not None and corrected < LEVEL:
            return " ▲" if up else " ▼"
        if plain is not None and plain < LEVEL:
            return " △" if up else " ▽"
        return ""

    @cached_property
    def ranks(self) -> dict[str, float | None]:
        """Mean ranks over domains and seeds."""
        columns: list[dict[object, float]] = [
            {(test["seed"], name): value for test in row.tests for name, value in test["domains"].items()}
            for row in self.rows.values()
        ]
        return dict(zip(self.rows, mean_ranks(columns), strict=True))

    def place_of_loss(self, method: str) -> str:
        """In words: what the results say about why a method is below zero-shot."""
        row, zero_shot = self.rows[method], self.rows[ZERO_SHOT]
        reasons = []
        net = row.count("broken") - row.count("repaired")
        if net <= _FEW * len(row.tests):
            images = sum(test["images"] for test in row.tests)
            reasons.append(f"{net} of {images:,} answers")
        behind = row.tail - zero_shot.tail
        if behind < -_COLLAPSE and behind < row.gain:  # and it was better before
            reasons.append(
                f"collapses: the last tenth of the stream has {row.tail:.1f}, zero-shot {zero_shot.tail:.1f}"
            )
        if row.best_of_search < -_NOTHING:
            reasons.append("no setting reaches zero-shot on the search stream either")
        elif row.best_of_search < _NOTHING:
            reasons.append("no setting is better than zero-shot on the search stream")
        else:
            reasons.append(f"gains {row.best_of_search:+.2f} on the search stream, which does not carry over")
        gains = row.domain_gains
        lost = -sum(min(gain, 0) for gain in gains.values())
        first = [item for item in gains.items() if item[1] < -_NOTHING][:2]
        where = ", ".join(f"{name} {gain:+.1f}" for name, gain in first)
        if -sum(gain for _, gain in first) >= _BOTH_SIDES * lost:
            reasons.append(f"at least half of what it loses is on {where}")
        else:
            reasons.append(f"loses on many domains, most on {where}")
        return "; ".join(reasons)


def _search_zero_shot(searches: dict[str, Any], method: str) -> float:
    own: list[float] = searches["methods"][method].get("zero_shot", searches["zero_shot"])
    return statistics.fmean(own)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def results(name: str) -> dict[str, Any] | None:
    """The results of a model, or None if they are not there."""
    paths = [ROOT / "results" / file for file in FILES[name]]
    found = [json.loads(path.read_text()) for path in paths if path.exists()]
    for other in found[1:]:
        for stream, more in other["streams"].items():
            _replace(found[0]["streams"][stream], more)
    return found[0] if found else None


def _replace(stream: dict[str, Any], more: dict[str, Any]) -> None:
    """Take what another file has of its methods on a stream; a method that lacks seeds replaces nothing."""
    known, new = (Counter(test["method"] for test in one["tests"]) for one in (stream, more))
    methods = {name for name, seeds in new.items() if seeds >= known[name]}
    kept = [test for test in stream["tests"] if test["method"] not in methods]
    stream["tests"] = kept + [test for test in more["tests"] if test["method"] in methods]
    for name in methods:
        # its search saw the zero-shot accuracy of its own machine and precision
        own = {**more["searches"]["methods"][name], "zero_shot": more["searches"]["zero_shot"]}
        stream["searches"]["methods"][name] = own


def streams_of(found: dict[str, Any]) -> dict[str, StreamRows]:
    """The streams, by name."""
    return {name: StreamRows(found["streams"][name]) for name in STREAMS}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def scores_table(found: dict[str, Any], cost: dict[str, Any]) -> str:
    """Accuracy and gain on every stream, with marks; rank and worst domain on the mixed one; cost."""
    streams = streams_of(found)
    mixed = streams["mixed"]
    best = {name: _best_average(name, one, mixed) for name, one in streams.items()}
    rows = []
    for method in sorted(mixed.rows, key=lambda method: -mixed.rows[method].average):
        cells = []
        for name, one in streams.items():
            row = one.rows.get(method)
            if row is None and _as_mixed(name, method):
                cells.append(_bold("as mixed", mixed.rows[method].average >= best[name] - _NOTHING))
            elif row is None:
                cells.append("-")
            else:
                average = _bold(f"{row.average:.2f}", row.average >= best[name] - _NOTHING)
                gain = "" if method == ZERO_SHOT else f" ({_signed(row.gain)}){one.mark(method)}"
                cells.append(average + gain)
        own = mixed.rows[method]
        passes, spent = own.tests[0]["passes"], cost["methods"].get(method, {})
        rows.append(
            [
                f"`{method}`" + (" (zero-shot)" if method == ZERO_SHOT else ""),
                *cells,
                f"{mixed.ranks[method]:.1f}",
                f"{own.worst_domain[1]:.1f} {own.worst_domain[0]}",
                f"{passes['forward']} / {passes['backward']}",
                _times(spent.get("forwards")),
            ]
        )
    heads = [_HEADS[name] for name in streams]
    return _table(
        ["method", *heads, "mean rank, mixed", "worst domain, mixed", "passes (F / B)", "time"], rows
    )


def _as_mixed(stream: str, method: str) -> bool:
    """Whether a method is not run on a stream because its answers would be those of the mixed one."""
    return method in EACH_BY_ITSELF and STREAMS[stream].same_images_as_mixed


def _best_average(name: str, stream: StreamRows, mixed: StreamRows) -> float:
    """The highest accuracy on a stream, also of methods that were not run again on it."""
    others = (row for method, row in mixed.rows.items() if _as_mixed(name, method))
    return max(row.average for row in (*stream.rows.values(), *others))


def _bold(text: str, bold: bool) -> str:
    return f"**{text}**" if bold else text


def _times(forwards: float | None) -> str:
    """How many forward passes a batch takes.

    >>> _times(1.04), _times(30.78), _times(None)
    ('1.0', '31', '-')
    """
    return "-" if forwards is None else f"{forwards:.1f}" if forwards < 9.95 else f"{forwards:.0f}"


def _signed(points: float) -> str:
    """Points with their sign.

    >>> _signed(-0.001), _signed(1.5)
    ('+0.00', '+1.50')
    """
    return f"{points + 0.0:+.2f}" if abs(points) >= 0.005 else "+0.00"


def losses_table(found: dict[str, Any]) -> str:
    """Every mean loss to zero-shot, with what the results say about it."""
    rows = []
    for name, one in streams_of(found).items():
        for method, row in sorted(one.rows.items(), key=lambda item: item[1].gain):
            if row.gain < -1e-9:
                seeds = " ".join(_signed(gain) for gain in row.gains)
                changed = f"{row.count('repaired')} / {row.count('broken')}"
                rows.append(
                    [
                        _HEADS[name],
                        f"`{method}`",
                        f"{row.gain:+.2f}{one.mark(method)}",
                        seeds,
                        row.chosen or "nothing to choose",
                        changed,
                        one.place_of_loss(method),
                    ]
                )
    head = ["stream", "method", "gain", "seeds", "chosen", "repaired / broken", "what the runs show"]
    return _table(head, rows)


def tables() -> dict[str, str]:
    """All tables of the page, by name."""
    cost = json.loads((ROOT / "results" / COST).read_text())
    found = {}
    for name in FILES:
        content = results(name)
        if content is not None:
            found[f"{name} scores"] = scores_table(content, cost)
            found[f"{name} losses"] = losses_table(content)
    return found


def with_tables(page: str) -> str:
    """The page with its tables renewed: each stands between two comments that name it."""
    for name, table in tables().items():
        start, end = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
        if start not in page or end not in page:
            raise ValueError(f"the page must have the comments {start} and {end}")
        block = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        page = block.sub(lambda _, text=f"{start}\n{table}\n{end}": text, page)  # type: ignore[misc]
    return page


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put them into the page")
    if parser.parse_args().write:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(*(f"{name}\n\n{table}\n" for name, table in tables().items()), sep="\n")


if __name__ == "__main__":
    main()
