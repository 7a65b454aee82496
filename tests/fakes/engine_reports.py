"""What engines report, made up."""

from typing import Any

from ramen.client.operations import EngineStatistics, FeedbackCounts, StreamInfo

STATISTICS = EngineStatistics(
    images=100,
    requests=50,
    batches=25,
    changed=10,
    fallbacks=1,
    undecodable=2,
    overloaded=3,
    expired=4,
    cancelled=5,
    waiting_images=6,
    waiting_bytes=700,
    queue_images=1024,
    queue_bytes=2**20,
    images_per_second=12.0,
    latency_ms={"p50": 5.0, "p99": 9.0},
    compute_ms={"p50": 3.0, "p99": 4.0},
    mean_batch=4.0,
    streams=8,
    resident_streams=3,
    resident_bytes=3000,
    streams_budget=2**30,
    parked=7,
    store_failures=0,
)


def stream_info(name: str, **values: Any) -> StreamInfo:
    """A stream that is on disk, unless the values say otherwise."""
    fields: dict[str, Any] = {
        "classes": ("cat", "dog"),
        "method": "ramen",
        "images": 0,
        "changed": 0,
        "fallbacks": 0,
        "errors": 0,
        "entries": None,
        "capacity": None,
        "memory_bytes": 0,
        "resident": False,
        "created": 1.0,
        "last_used": None,
        "feedback": FeedbackCounts(),
    }
    return StreamInfo(name=name, **{**fields, **values})
