"""What an operator decides about the HTTP front."""

from dataclasses import dataclass
from pathlib import Path

from ramen.utils import checks

_MIB = 2**20


@dataclass(frozen=True)
class HttpSettings:
    """Limits of requests, and who may send them.

    Attributes:
        tokens: The file of ``ramen token``; None lets everybody in who reaches the server from this machine:
            requests must then name a loopback address as their host, and come from no other site.
        max_body_bytes: The most bytes in the body of a request.
        max_json_bytes: The most bytes of JSON in requests of the Open Inference Protocol, whose numbers take
            many times as much memory; tensors may follow as binary data.
        max_bodies_bytes: The most bytes in the bodies of all requests that are read or answered at a time;
            beyond it, requests are refused before their body is read.
        default_timeout_ms: How long a request may take that does not say; the arrival of its body included.
        max_timeout_ms: The longest time that a request may ask for.
        max_listeners: The most readers of ``/v1/events`` at a time.
        events_interval: Seconds from one event to the next.
    """

    tokens: Path | None = None
    max_body_bytes: int = 64 * _MIB
    max_json_bytes: int = 4 * _MIB
    max_bodies_bytes: int = 1024 * _MIB
    default_timeout_ms: int = 30_000
    max_timeout_ms: int = 120_000
    max_listeners: int = 32
    events_interval: float = 1.0

    def __post_init__(self) -> None:
        checks.integer("max_body_bytes", self.max_body_bytes, 1)
        checks.integer("max_json_bytes", self.max_json_bytes, 1)
        checks.integer("max_bodies_bytes", self.max_bodies_bytes, self.max_body_bytes)
        checks.integer("max_timeout_ms", self.max_timeout_ms, 1)
        checks.integer(
            "default_timeout_ms", self.default_timeout_ms, 1, self.max_timeout_ms, "max_timeout_ms"
        )
        checks.integer("max_listeners", self.max_listeners, 1)
        checks.number("events_interval", self.events_interval, 0, exclusive=True)
