"""What is sent to the engine, and what it answers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramen.serve.result import Result


@dataclass(frozen=True)
class SentImage:
    """An image as a client sends it.

    Attributes:
        key: The client's own name for it.
        data: A file's bytes, also as an array ``(n,)``, or pixels ``(H, W, 3)`` in uint8. An array must not
            change until it is answered. Never a path: the engine opens nothing.
    """

    key: str
    data: bytes | NDArray[np.uint8]

    @property
    def value(self) -> bytes | NDArray[np.uint8]:
        """What a decoder takes: the bytes of a file, or pixels."""
        is_file = isinstance(self.data, np.ndarray) and self.data.ndim == 1
        return self.data.tobytes() if is_file else self.data  # type: ignore[union-attr]

    @property
    def nbytes(self) -> int:
        """How many bytes it takes while it waits."""
        return len(self.data) if isinstance(self.data, bytes) else self.data.nbytes


@dataclass(frozen=True)
class StreamAnswer:
    """The answer for one image of a stream.

    Attributes:
        id: Names the answer when its true label is sent later; unique on the server. Empty for an error.
        stream: The stream it belongs to.
        result: Label, probabilities, what the classifier says without adaptation, support; or an error.
        probabilities: Of all classes, ``(C,)`` in fp32, in the order of the stream's classes; None for an
            error.
        queued_ms: How long the image waited, decoding included.
        computed_ms: How long its batch took.
    """

    id: str
    stream: str
    result: Result
    probabilities: NDArray[np.float32] | None
    queued_ms: float
    computed_ms: float
