"""What an operator decides: how an engine batches, what streams may keep, and limits of requests."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramen.images.file_checks import DecodingSettings
from ramen.utils import checks
from ramen.utils.checks import nearest

if TYPE_CHECKING:
    import torch

_MIB = 2**20
_PACKAGES = ("fastapi", "uvicorn", "httptools", "python_multipart", "prometheus_client")
_POSITIVE = (
    "max_batch",
    "max_queue_images",
    "max_queue_bytes",
    "streams_budget",
    "stream_memory",
    "max_streams",
)


def check_packages() -> None:
    """ImportError that says how to install what is missing."""
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"a service needs {package}: pip install 'ramen-tta[serve]'")


@dataclass(frozen=True)
class EngineSettings:
    """What an operator decides.

    Attributes:
        max_batch: The most images that are answered together; also the most in one request.
        max_delay_ms: How long the first image of a batch may wait for others.
        max_queue_images: The most images that may be waiting, or being answered, at a time.
        max_queue_bytes: The most bytes of these, as they were sent.
        invariant: Answers are the same to the last bit whatever else is in a batch. On a GPU, passes always
            have ``max_batch`` images, blank ones if need be; on a CPU, each image passes alone. Without it
            batches differ in size, and with it rounding.
        state: A folder that keeps what streams learn; None for a temporary folder.
        save_every: When a stream's state is written; see ``ramen.state``.
        streams_budget: Bytes that the memories of all streams may take together; the least recently used
            ones are put to disk, and come back when they are asked for.
        stream_memory: Bytes that the memory of one stream may grow to.
        max_streams: The most streams that there may be, on disk included.
        create_on_use: Whether an image for a stream that does not exist creates it.
        keep_changed: How many of the last images that adaptation gave another label are kept per stream, as
            thumbnails for the dashboard; 0 keeps none.
        overlap: Whether a full batch is begun while the one before is being computed and its answers are
            sent; not if ``save_every`` has each batch wait until the last one is on the disk. By default on a
            GPU.
        decoding: What may be decoded, and how.
    """

    max_batch: int = 32
    max_delay_ms: float = 5.0
    max_queue_images: int = 1024
    max_queue_bytes: int = 256 * _MIB
    invariant: bool = False
    state: str | None = None
    save_every: str | int = "1s"
    streams_budget: int = 1024 * _MIB
    stream_memory: int = 64 * _MIB
    max_streams: int = 10_000
    create_on_use: bool = True
    keep_changed: int = 0
    overlap: bool | None = None
    decoding: DecodingSettings = field(default_factory=DecodingSettings)

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            checks.integer(name, getattr(self, name), 1)
        checks.integer("keep_changed", self.keep_changed, 0)
        checks.number("max_delay_ms", self.max_delay_ms, 0)
        checks.flag("invariant", self.invariant)
        checks.flag("create_on_use", self.create_on_use)

    def overlaps_on(self, device: "torch.device") -> bool:
        """Whether batches for a model on ``device`` may overlap."""
        return device.type == "cuda" if self.overlap is None else self.overlap


@dataclass(frozen=True)
class HttpSettings:
    """Limits of requests, and who may send them.

    Attributes:
        tokens: The file of ``ramen token``; None lets everybody in who reaches the server from this machine:
            requests must then name a loopback address as their host, and come from no other site.
        max_body_bytes: The most bytes in the body of a request.
        max_json_bytes: The most bytes of JSON in requests of the Open Inference Protocol, whose tensors may
            follow as binary data, and in requests without images: JSON takes many times as much memory.
        max_bodies_bytes: The most bytes that have come of all requests that are read or answered at a time;
            beyond it, requests are refused, those that declare their length before their body is read. One
            token, or one stream, has at most two thirds of it.
        default_timeout_ms: How long a request may take that does not say; the arrival of its body included.
        max_timeout_ms: The longest time that a request may ask for.
        max_listeners: The most readers of ``/v1/events`` at a time.
        events_interval: Seconds from one event to the next.
        max_head_bytes: The most bytes in the head of a request, and between two pieces of its body.
        max_headers: The most headers of a request.
        head_seconds: How long the head of a request may take.
        idle_seconds: How long nothing of a body may come.
        stalled_seconds: How long a client may take nothing of its response.
        max_connections: The most connections of a process; by default three quarters of the files that it may
            open.
        max_connections_per_address: The most of them from one address; by default half of all, and all
            without tokens.
    """

    tokens: Path | None = None
    max_body_bytes: int = 64 * _MIB
    max_json_bytes: int = 4 * _MIB
    max_bodies_bytes: int = 1024 * _MIB
    default_timeout_ms: int = 30_000
    max_timeout_ms: int = 120_000
    max_listeners: int = 32
    events_interval: float = 1.0
    max_head_bytes: int = 2**16
    max_headers: int = 100
    head_seconds: float = 10.0
    idle_seconds: float = 20.0
    stalled_seconds: float = 30.0
    max_connections: int | None = None
    max_connections_per_address: int | None = None

    def __post_init__(self) -> None:
        checks.integer("max_body_bytes", self.max_body_bytes, 1)
        checks.integer("max_json_bytes", self.max_json_bytes, 1)
        checks.integer("max_bodies_bytes", self.max_bodies_bytes, self.max_body_bytes)
        checks.integer("max_timeout_ms", self.max_timeout_ms, 1)
        checks.integer(
            "default_timeout_ms", self.default_timeout_ms, 1, self.max_timeout_ms, "max_timeout_ms"
        )
        checks.integer("max_listeners", self.max_listeners, 1)
        checks.integer("max_head_bytes", self.max_head_bytes, 256)
        checks.integer("max_headers", self.max_headers, 1)
        for name in ("events_interval", "head_seconds", "idle_seconds", "stalled_seconds"):
            checks.number(name, getattr(self, name), 0, exclusive=True)
        for name in ("max_connections", "max_connections_per_address"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), 1)


def settings_of(given: Mapping[str, Any]) -> tuple[EngineSettings, HttpSettings]:
    """Settings by the names of their fields; ValueError for one that does not exist.

    Args:
        given: Those that differ from their defaults: fields of ``EngineSettings`` and ``HttpSettings``, and
            ``max_pixels``.
    """
    engine_names = {field.name for field in fields(EngineSettings)} - {"decoding"}
    http_names = {field.name for field in fields(HttpSettings)}
    known = engine_names | http_names | {"max_pixels"}
    for name in given:
        if name not in known:
            raise ValueError(f"{name} is no setting of a service{nearest(name, known)}")
    http = {name: value for name, value in given.items() if name in http_names}
    largest = http.get("max_body_bytes", HttpSettings.max_body_bytes)
    engine = EngineSettings(
        **{name: value for name, value in given.items() if name in engine_names},
        decoding=DecodingSettings(
            max_bytes=largest, **{name: value for name, value in given.items() if name == "max_pixels"}
        ),
    )
    # Besides what waits in the queue, some bodies are being read, and some are text that is decoded.
    together = 3 * engine.max_queue_bytes + 4 * largest
    return engine, HttpSettings(**{"max_bodies_bytes": together, **http})
