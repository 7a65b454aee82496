"""Figures for Prometheus, on a registry of their own.

No figure has the name of a stream as a label: a server may have 10,000 streams, and each label would be a
time series of its own in the monitoring system. ``GET /v1/streams`` has the figures of each stream.
"""

import itertools
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ramen import __version__
from ramen.serve.engine.stream_info import EngineStatistics
from ramen.serve.http.backend import ServedModel
from ramen.serve.http.request_figures import BOUNDS, RequestFigures

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
        for field, (name, meaning) in _COUNTERS.items():
            yield CounterMetricFamily(name, meaning, getattr(self.latest, field))
        for field, (name, meaning) in _GAUGES.items():
            value = getattr(self.latest, field)
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
