"""``ramen classify --server``: files are sent to a service, which learns from them in one of its streams."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.run.provenance import versions
from ramen.serve.changes_page.page import PageSettings
from ramen.serve.classify_request import ClassifyRequest, ServerTarget
from ramen.serve.client.client import Client
from ramen.serve.client.errors import ConflictError, ForbiddenError, NoSuchStreamError
from ramen.serve.client.served_answer import ServedAnswer
from ramen.serve.client.server_calls import Loaded
from ramen.serve.decoded_stream import DecodedStreams
from ramen.serve.outputs.output import Output
from ramen.serve.outputs.record import Identity
from ramen.serve.predictor import Counts
from ramen.serve.result import Result
from ramen.serve.sources import NoImage, Source, expand
from ramen.utils.stopping import StopRequest

_RETRIES = 1000  # a service that is overloaded is waited for as long as the client's time for that lasts


@contextmanager
def service_answering(request: ClassifyRequest, target: ServerTarget) -> Iterator["ServiceAnswering"]:
    """Answers of a service, as long as a block lasts.

    Args:
        request: What to do.
        target: Who answers.
    """
    with Client(target.url, target.token, target.stream, retries=_RETRIES, in_flight=1) as client:
        client.ready()  # a wrong URL shows at once, as this does not try again
        yield ServiceAnswering(request, target, client)


class ServiceAnswering:
    """Answers with a stream of a service.

    One request is under way at a time, so that the stream learns from the files in their order, and so that a
    run that is stopped has written down everything that was learned.

    Args:
        request: What to do.
        target: The service and the stream.
        client: Connected to it.

    Attributes:
        identity: What the answers are made with, as far as a service says so.
        state: The stream, which keeps what is learned.
        processes: None: one process sends files.
    """

    processes = None

    def __init__(self, request: ClassifyRequest, target: ServerTarget, client: Client) -> None:
        self._request, self._target, self._client = request, target, client
        self._model = client.model()
        self._batch = min(request.batch_size, self._model.max_batch)
        if request.batch is not None and request.batch > self._batch:
            raise ValueError(
                f"--batch must be at most {self._batch}, the most that {client.url} takes in a request, "
                f"got {request.batch}"
            )
        classes = stream_classes(client, target, request.checked_classes() if request.classes else None)
        self.state: str | None = f"stream {target.stream} of {client.url}"
        self.identity = Identity(
            model=self._model.name,
            weights=f"{self._model.name} of a service",
            classes=classes,
            templates=(),
            method=self._model.method,
            parameters={},
            orient=True,
        )

    @contextmanager
    def predictor(self, files: int) -> Iterator["ServedResults"]:
        """What sends files.

        Args:
            files: How many there are; makes no difference.
        """
        max_delay = self._request.interval if self._request.watch else None
        yield ServedResults(self._client, self._target.stream, self._batch, max_delay)

    def heed(self, stop: StopRequest) -> None:
        """Nobody else can ask."""

    def forget_unlearned(self, output: Output) -> int:
        """Nothing: a service does not say which images it has learned."""
        return 0

    def notes(self, output: Output, files: Sequence[str], again: int) -> Iterable[str]:
        """What may be learned twice."""
        if output.recovering and files:
            yield (
                f"the last run was killed: {self.state} may have learned up to {self._batch:,} files "
                "that are not in the output, and learns them again now"
            )

    def page_settings(self) -> PageSettings:
        """What the page says about how its results were made."""
        model, installed = self._model, versions()
        return PageSettings(
            output=self._request.out,
            model=model.name,
            method=paper.title(model.method),
            classes=self.identity.classes,
            facts={
                "service": self._client.url,
                "stream": self._target.stream,
                "device": f"{model.device}, {model.dtype}",
                "files per request": f"{self._batch:,}",
                "versions": f"ramen {installed.get('ramen')} (of the client)",
            },
            decoding=self._request.decoding(),
        )

    def summary(self) -> dict[str, Any]:
        """Facts for the summary of a run."""
        target, model = self._target, self._model
        return {
            "server": self._client.url,
            "stream": target.stream,
            "state": None,
            "model": model.name,
            "method": model.method,
        }


def stream_classes(client: Client, target: ServerTarget, classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """The classes of the stream, which is created if it is missing; ValueError if they are not ``classes``.

    Args:
        client: Connected to the service.
        target: The stream.
        classes: What the user asked for; None for whatever the stream has.
    """
    try:
        found = client.stream().classes
    except NoSuchStreamError:
        found = _created(client, classes)
    if classes is not None and found != classes:
        shown = ", ".join(found[:5]) + (f", ... ({len(found)})" if len(found) > 5 else "")
        raise ValueError(
            f"--classes: the stream {target.stream!r} has other classes ({shown}): leave --classes out to "
            "use these, or choose another --stream"
        )
    return found


def _created(client: Client, classes: tuple[str, ...] | None) -> tuple[str, ...]:
    try:
        return client.create_stream(classes=classes).classes
    except ConflictError:  # somebody else was faster
        return client.stream().classes
    except ForbiddenError:
        if classes is not None:
            raise
        return client.model().classes  # the first image creates the stream


class ServedResults:
    """Results of a stream; files are read ahead, and sent one request after another.

    Args:
        client: Connected to the service.
        stream: The stream's name.
        batch: Files per request.
        max_delay: Seconds after which a request is sent that is not full; None waits until it is.

    Attributes:
        counts: What was answered so far, up to a whole request.
        resumed: Nothing: a service does not keep answers.
    """

    def __init__(self, client: Client, stream: str, batch: int, max_delay: float | None) -> None:
        self._client = client
        self._streams = DecodedStreams(_FileReader(client, stream), 0, batch, max_delay)
        self.counts = Counts()
        self.resumed: tuple[Result, ...] = ()

    def classify(self, sources: object) -> Generator[Result, None, None]:
        """One result per source, in order."""
        with self._streams.open(expand(sources)) as stream:
            while batch := stream.batch():
                results = [answer.to_result() for answer in self._client.classify_loaded(batch)]
                errors = sum(result.error is not None for result in results)
                self.counts = replace(
                    self.counts,
                    images=self.counts.images + len(results) - errors,
                    errors=self.counts.errors + errors,
                )
                yield from results


class _FileReader:
    """Reads files for a client; what cannot be read becomes an answer with an error."""

    def __init__(self, client: Client, stream: str) -> None:
        self._client, self._stream = client, stream

    def detach(self, source: Source) -> Source:
        return source

    def decode(self, source: Source) -> Loaded:
        if isinstance(source.value, NoImage):
            return self.failed(source.key, source.value.error)
        return self._client.load((source.key, source.value))

    def decode_all(self, sources: Sequence[Source]) -> list[Loaded]:
        return [self.decode(source) for source in sources]

    def failed(self, key: str, error: str) -> ServedAnswer:
        return ServedAnswer.failed(self._stream, key, error)
