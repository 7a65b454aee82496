"""What several replicas report, as one."""

from collections.abc import Iterable, Mapping, Sequence

from ramen.client.operations import EngineStatistics, StreamInfo

_COUNTERS = (
    "images",
    "requests",
    "batches",
    "changed",
    "fallbacks",
    "undecodable",
    "overloaded",
    "expired",
    "cancelled",
    "parked",
    "store_failures",
)
_SUMS = (
    "waiting_images",
    "waiting_bytes",
    "queue_images",
    "queue_bytes",
    "images_per_second",
    "resident_streams",
    "resident_bytes",
    "streams_budget",
)


class MergedStatistics:
    """Adds up what replicas report, also of those that have gone: counters never go down."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[str, int]] = {}  # what each replica said last

    def merged(self, reports: Mapping[str, EngineStatistics]) -> EngineStatistics:
        """All replicas as one.

        Percentiles of several replicas cannot be added up: those of the slowest replica are reported. All
        replicas list the same folder of streams, so that the longest list counts.

        Args:
            reports: By a replica's name, of those that are there now.
        """
        for name, report in reports.items():
            self._counters[name] = {counter: getattr(report, counter) for counter in _COUNTERS}
        values = list(reports.values())
        totals = {counter: sum(one[counter] for one in self._counters.values()) for counter in _COUNTERS}
        sums = {name: sum(getattr(one, name) for one in values) for name in _SUMS}
        return EngineStatistics(
            **totals,
            **sums,
            latency_ms=_longest(one.latency_ms for one in values),
            compute_ms=_longest(one.compute_ms for one in values),
            mean_batch=_mean_batch(values),
            streams=max((one.streams for one in values), default=0),
        )


def _longest(reports: Iterable[Mapping[str, float]]) -> dict[str, float]:
    longest: dict[str, float] = {}
    for report in reports:
        for name, value in report.items():
            longest[name] = max(value, longest.get(name, value))
    return longest


def _mean_batch(reports: Sequence[EngineStatistics]) -> float | None:
    """Images per batch, of all batches: a replica has as many as its images go into."""
    busy = [(one.images_per_second, one.mean_batch) for one in reports if one.mean_batch]
    batches = sum(images / mean for images, mean in busy)
    return sum(images for images, _ in busy) / batches if batches else None


def merged_streams(reports: Iterable[Sequence[StreamInfo]], limit: int) -> list[StreamInfo]:
    """Streams by name; of several reports on a stream, that of the replica that has it in memory.

    Args:
        reports: Of each replica: its first ``limit`` streams, by name.
        limit: The most to return.
    """
    found: dict[str, StreamInfo] = {}
    for report in reports:
        for info in report:
            known = found.get(info.name)
            if known is None or _freshness(info) > _freshness(known):
                found[info.name] = info
    return [found[name] for name in sorted(found)[:limit]]


def _freshness(info: StreamInfo) -> tuple[bool, float]:
    return info.resident, info.last_used or 0.0
