"""What the HTTP front needs of an engine, in this process or on other machines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ramen.serve.engine.answers import SentImage, StreamAnswer
from ramen.serve.engine.errors import EngineError
from ramen.serve.engine.stream_info import EngineStatistics, FeedbackCounts, StreamActivity, StreamInfo
from ramen.serve.http.request_figures import RequestFigures


@dataclass(frozen=True)
class ServedModel:
    """What a service serves.

    Attributes:
        name: Such as "ViT-B-16/openai".
        method: The method that adapts.
        classes: The classes of streams that do not set their own.
        image_size: Height and width that images are resized to.
        max_batch: The most images in a request.
        can_set_classes: Whether a stream may have classes of its own: the model has a text tower.
        device: Where it computes.
        dtype: The dtype of its weights.
    """

    name: str
    method: str
    classes: tuple[str, ...]
    image_size: tuple[int, int]
    max_batch: int
    can_set_classes: bool
    device: str
    dtype: str


class Backend(Protocol):
    """An engine that is called without waiting; errors are those of ``ramen.serve.engine.errors``."""

    @property
    def model(self) -> ServedModel:
        """What is served."""

    async def ready(self) -> bool:
        """Whether images can be answered now."""

    async def refusal(self, stream: str, images: int, nbytes: int) -> EngineError | None:
        """Why so much would be refused now, known at once; None if ``classify`` has to be asked.

        Args:
            stream: The stream that the images belong to.
            images: How many there are, at least.
            nbytes: Likewise their bytes.
        """

    def count_refusal(self) -> None:
        """A request was refused because of what ``refusal`` says."""

    def memory_for(self, length: int) -> memoryview | None:
        """Memory for a large body, in which the engine finds its images; None for that of this process.

        Args:
            length: In bytes.
        """

    async def classify(
        self, stream: str, images: Sequence[SentImage], *, timeout: float | None = None
    ) -> list[StreamAnswer]:
        """One answer per image, in order; if the caller is cancelled, images that still wait are dropped.

        Args:
            stream: The stream they belong to.
            images: At most ``model.max_batch``.
            timeout: Seconds; a DeadlineError if the images still wait then.
        """

    async def create_stream(
        self, stream: str, classes: Sequence[str] | None = None
    ) -> tuple[StreamInfo, bool]:
        """Create a stream unless it exists with these classes; also whether it is new."""

    async def streams(self, *, after: str = "", limit: int = 100, prefix: str = "") -> list[StreamInfo]:
        """Streams by name, those behind ``after``."""

    async def stream(self, stream: str) -> StreamInfo:
        """One stream."""

    async def activity(self, stream: str) -> StreamActivity:
        """What happened in a stream lately."""

    async def reset(self, stream: str) -> StreamInfo:
        """Forget what was learned."""

    async def snapshot(self, stream: str) -> StreamInfo:
        """Return when everything that was learned is on disk."""

    async def delete(self, stream: str) -> None:
        """Forget the stream and remove its state."""

    async def set_classes(self, stream: str, classes: Sequence[str]) -> StreamInfo:
        """Give a stream other classes; what it learned with the old ones is forgotten."""

    async def feedback(self, stream: str, labels: Sequence[tuple[str, str]]) -> FeedbackCounts:
        """Take true labels, as pairs of an answer's id and a class; returns the stream's counts."""

    async def figures(self, own: RequestFigures) -> RequestFigures:
        """What all fronts of the backend have counted of requests.

        Args:
            own: What the caller has counted.
        """

    async def statistics(self) -> EngineStatistics:
        """The whole engine."""

    async def close(self) -> None:
        """Finish what was accepted, write all states, and stop."""
