"""What a page shows of an output, from one pass over its results; its size does not grow with the output."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ramen.classify.output import Tally
from ramen.client.result import Result

SHOWN = 200  # images, and files that failed
_PARTS = 40  # of the time, at most
_PER_PART = 20  # images, at least


@dataclass
class TimePart:
    """A stretch of results, in the order in which they came.

    Attributes:
        answers: How many there are.
        before: How often each class was predicted without adaptation.
        after: The same with it.
        entropy_before: The sum of the entropies without adaptation.
        entropy_after: The same with it.
    """

    answers: int = 0
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    entropy_before: float = 0.0
    entropy_after: float = 0.0

    def add(self, result: Result) -> None:
        """Count an answer."""
        self.answers += 1
        self.before[result.zero_shot_label or ""] += 1
        self.after[result.label or ""] += 1
        self.entropy_before += result.zero_shot_entropy or 0.0
        self.entropy_after += result.entropy or 0.0


@dataclass
class ChangesSummary:
    """All that a page shows.

    Attributes:
        tally: Of all results.
        per_part: How many answers each part of the time has; the last may have fewer.
        parts: The time.
        transitions: How often each label became each other one.
        changes: The changed results with the highest probabilities, the highest first.
        failures: The first files that failed.
    """

    per_part: int
    tally: Tally = field(default_factory=Tally)
    parts: list[TimePart] = field(default_factory=list)
    transitions: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: list[Result] = field(default_factory=list)
    failures: list[Result] = field(default_factory=list)

    @classmethod
    def of(cls, results: Iterable[Result], answers: int, shown: int = SHOWN) -> "ChangesSummary":
        """Summarise results.

        Args:
            results: In the order in which they came.
            answers: How many of them have no error.
            shown: The most changes and the most failures to keep.
        """
        summary = cls(per_part=max(_PER_PART, -(-answers // _PARTS)))
        changed = summary._count(results, shown)
        summary.changes = heapq.nlargest(shown, changed, key=lambda result: result.probability or 0.0)
        return summary

    def _count(self, results: Iterable[Result], shown: int) -> Iterator[Result]:
        """Count all results and pass on the changed ones."""
        for result in results:
            self.tally.add(result)
            if result.error is not None:
                if len(self.failures) < shown:
                    self.failures.append(result)
                continue
            if not self.parts or self.parts[-1].answers == self.per_part:
                self.parts.append(TimePart())
            self.parts[-1].add(result)
            if result.changed:
                self.transitions[result.zero_shot_label or "", result.label or ""] += 1
                yield result

    @property
    def entropies(self) -> tuple[float, float]:
        """Mean entropy before and after adaptation, in nats."""
        answers = max(1, self.tally.answers)
        before = sum(part.entropy_before for part in self.parts)
        return before / answers, sum(part.entropy_after for part in self.parts) / answers
