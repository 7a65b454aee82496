"""What is counted of requests, and the page for Prometheus, on a registry of its own.

No figure has the name of a stream as a label: a server may have 10,000 streams, and each label would be a
time series of its own in the monitoring system. ``GET /v1/streams`` has the figures of each stream.
"""

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ramen import __version__
from ramen.client.operations import EngineStatistics, ServedModel

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
_COUNTERS = {
    "images": ("ramen_images", "Images answered"),
    "batches": ("ramen_batches", "Batches computed"),
    "changed": ("ramen_changed", "Images that adaptation gave another label"),
    "fallbacks": ("ramen_fallbacks", "Images answered zero-shot because the adaptation failed"),
    "undecodable": ("ramen_undecodable", "Images that could not be decoded"),
    "overloaded": ("ramen_overloaded", "Requests refused because too much was waiting"),
    "expired": ("ramen_expired", "Requests that were not answered in time"),
    "cancelled": ("ramen_cancelled", "Requests whose client went away"),
    "parked": ("ramen_parked", "Times that a stream was put to disk"),
    "store_failures": ("ramen_store_failures", "Times that a state could not be written"),
}
_GAUGES = {
    "waiting_images": ("ramen_queue_images", "Images that wait or are being answered"),
    "waiting_bytes": ("ramen_queue_bytes", "Bytes of the images that wait or are being answered"),
    "queue_images": ("ramen_queue_images_limit", "The most images that may wait"),
    "queue_bytes": ("ramen_queue_bytes_limit", "The most bytes that may wait"),
    "mean_batch": ("ramen_batch_size", "Mean images per batch over the last ten seconds"),
    "streams": ("ramen_streams", "Streams, on disk included"),
    "resident_streams": ("ramen_resident_streams", "Streams in memory"),
    "resident_bytes": ("ramen_resident_bytes", "What the streams in memory take"),
    "streams_budget": ("ramen_streams_budget_bytes", "What the streams in memory may take"),
}


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


class ServiceMetrics:
    """The page of all figures.

    Args:
        model: What is served.
    """

    def __init__(self, model: ServedModel) -> None:
        self.registry = CollectorRegistry()
        build = Gauge("ramen_build_info", "What runs", ["version", "model", "method"], registry=self.registry)
        build.labels(__version__, model.name, model.method).set(1)
        self._requests, self._engine = _RequestCollector(), _EngineCollector()
        self.registry.register(self._requests)
        self.registry.register(self._engine)

    def page(self, figures: RequestFigures, statistics: EngineStatistics) -> bytes:
        """All figures in the text format of Prometheus.

        Args:
            figures: What was counted of requests.
            statistics: What the engine says of itself.
        """
        self._requests.latest, self._engine.latest = figures, statistics
        return generate_latest(self.registry)


class _RequestCollector(Collector):
    """What was counted of requests when it was asked for last."""

    latest: RequestFigures | None = None

    def collect(self) -> Iterable[Metric]:
        if self.latest is None:
            return
        labels = ["method", "route", "status"]
        requests = CounterMetricFamily("ramen_http_requests", "Requests answered", labels=labels)
        for names, count in self.latest.requests.items():
            requests.add_metric(names, count)
        yield requests
        meaning = "From a request's first byte to the end of its response"
        seconds = HistogramMetricFamily("ramen_http_request_seconds", meaning, labels=["route"])
        for route, durations in self.latest.seconds.items():
            ends = [*map(str, BOUNDS), "+Inf"]
            buckets = list(zip(ends, itertools.accumulate(durations.counts), strict=True))
            seconds.add_metric([route], buckets, durations.total)
        yield seconds
        yield GaugeMetricFamily("ramen_event_listeners", "Readers of /v1/events", self.latest.listeners)


class _EngineCollector(Collector):
    """The engine's figures as they were when they were asked for last."""

    latest: EngineStatistics | None = None

    def collect(self) -> Iterable[Metric]:
        if self.latest is None:
            return
        for counter, (name, meaning) in _COUNTERS.items():
            yield CounterMetricFamily(name, meaning, getattr(self.latest, counter))
        for gauge, (name, meaning) in _GAUGES.items():
            value = getattr(self.latest, gauge)
            if value is not None:
                yield GaugeMetricFamily(name, meaning, value)
        for name, meaning, percentiles in (
            ("ramen_latency_ms", "From arrival to answer, the last ten seconds", self.latest.latency_ms),
            ("ramen_compute_ms", "Of a batch, the last ten seconds", self.latest.compute_ms),
        ):
            family = GaugeMetricFamily(name, meaning, labels=["percentile"])
            for percentile, value in percentiles.items():
                family.add_metric([percentile], value)
            yield family
