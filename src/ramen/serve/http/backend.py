"""What the HTTP application needs of an engine, in this process or on other machines."""

from typing import Protocol

from ramen.client.operations import Operation, Reply, ServedModel, ServerError
from ramen.serve.http.metrics import RequestFigures


class Backend(Protocol):
    """An engine that is called without waiting; errors are those of ``ramen.client.operations``."""

    @property
    def model(self) -> ServedModel:
        """What is served."""

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Do something; if the caller is cancelled, images that still wait are dropped."""

    async def refusal(self, stream: str, images: int, nbytes: int) -> ServerError | None:
        """Why so much would be refused now, known at once; None if the engine has to be asked.

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

    async def figures(self, own: RequestFigures) -> RequestFigures:
        """What all workers of the backend have counted of requests.

        Args:
            own: What the caller has counted.
        """

    async def close(self) -> None:
        """Finish what was accepted, write all states, and stop."""
