"""What an operator decides about the HTTP front."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ramen.utils import checks

_MIB = 2**20
_PACKAGES = ("fastapi", "uvicorn", "httptools", "python_multipart", "prometheus_client")


def check_packages() -> None:
    """ImportError that says how to install what is missing."""
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"a service needs {package}: pip install 'ramen-tta[serve]'")


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
