"""How an engine batches, how much may wait, and how much streams may keep."""

from dataclasses import dataclass, field

import torch

from ramen.images.decoding import DecodingSettings
from ramen.utils import checks

_MIB = 2**20
_POSITIVE = (
    "max_batch",
    "max_queue_images",
    "max_queue_bytes",
    "streams_budget",
    "stream_memory",
    "max_streams",
)


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

    def overlaps_on(self, device: torch.device) -> bool:
        """Whether batches for a model on ``device`` may overlap."""
        return device.type == "cuda" if self.overlap is None else self.overlap
