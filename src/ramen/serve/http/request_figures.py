"""What is counted of requests: plain numbers, which can be sent to others and added up."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds


@dataclass
class Durations:
    """How long requests took.

    Attributes:
        counts: How many were at most as long as each of ``BOUNDS``, and longer than the one before; the last
            number is of those that took longer than all of them.
        total: Seconds.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def add_all(self, other: "Durations") -> None:
        """Those of another front."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


@dataclass
class RequestFigures:
    """What one front has counted, or all of them.

    Attributes:
        requests: By method of HTTP, template of the path, and status.
        seconds: By template of the path.
        listeners: Readers of events now.
    """

    requests: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    seconds: dict[str, Durations] = field(default_factory=dict)
    listeners: int = 0

    def count(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count a request.

        Args:
            method: Of HTTP.
            route: The template of its path.
            status: Of the response.
            seconds: How long it took; None for a stream of events, which says nothing about speed.
        """
        self.requests[method, route, str(status)] += 1
        if seconds is not None:
            self.seconds.setdefault(route, Durations()).add(seconds)

    def add_all(self, other: "RequestFigures") -> None:
        """Add what another front has counted."""
        self.requests.update(other.requests)
        for route, durations in other.seconds.items():
            self.seconds.setdefault(route, Durations()).add_all(durations)
        self.listeners += other.listeners

    def to_json(self) -> dict[str, Any]:
        """As values that JSON has."""
        return {
            "requests": [[*labels, count] for labels, count in self.requests.items()],
            "seconds": {route: [one.counts, one.total] for route, one in self.seconds.items()},
            "listeners": self.listeners,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "RequestFigures":
        """What ``to_json`` returned."""
        requests = Counter({(method, route, status): n for method, route, status, n in values["requests"]})
        seconds = {route: Durations(counts, total) for route, (counts, total) in values["seconds"].items()}
        return cls(requests, seconds, values["listeners"])
