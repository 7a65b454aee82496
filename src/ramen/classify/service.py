"""``ramen classify --server``: files are sent to a service, which learns from them in one of its streams."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ramen.classify.output import Identity, Output
from ramen.classify.run import Answering
from ramen.client.calls import Loaded
from ramen.client.client import Client
from ramen.client.operations import ConflictError, ForbiddenError, NoSuchStreamError, ServedAnswer
from ramen.client.result import Result
from ramen.predict.decoding import DecodedStreams
from ramen.predict.sources import NoImage, Source, expand

if TYPE_CHECKING:
    from ramen.classify.command import ClassifyRequest

_RETRIES = 1000  # a service that is overloaded is waited for as long as the client's time for that lasts


@contextmanager
def service_answering(request: "ClassifyRequest") -> Iterator["ServiceAnswering"]:
    """Answers of a service, as long as a block lasts."""
    assert request.server is not None
    with Client(request.server, request.token, request.stream, retries=_RETRIES, in_flight=1) as client:
        client.ready()  # a wrong URL shows at once, as this does not try again
        yield ServiceAnswering(request, client)


class ServiceAnswering(Answering):
    """Answers with a stream of a service, which keeps what is learned.

    One request is under way at a time, so that the stream learns from the files in their order, and so that a
    run that is stopped has written down everything that was learned.
    """

    def __init__(self, request: "ClassifyRequest", client: Client) -> None:
        self._request, self._client = request, client
        self._model = client.model()
        self._batch = min(request.batch_size, self._model.max_batch)
        if request.batch is not None and request.batch > self._batch:
            raise ValueError(
                f"--batch must be at most {self._batch}, the most that {client.url} takes in a request, "
                f"got {request.batch}"
            )
        self.state = f"stream {request.stream} of {client.url}"
        self.identity = Identity(
            model=self._model.name,
            weights=f"{self._model.name} of a service",
            classes=_stream_classes(client, request.stream, request.class_names() or None),
            templates=(),
            method=self._model.method,
            parameters={},
            orient=True,
            dtype=self._model.dtype,
        )

    @contextmanager
    def open(self, files: int) -> Iterator["ServedResults"]:
        max_delay = self._request.interval if self._request.watch else None
        yield ServedResults(self._client, self._request.stream, self._batch, max_delay)

    def notes(self, output: Output, files: Sequence[str], again: int) -> Iterable[str]:
        if output.recovering and files:
            yield (
                f"the last run was killed: {self.state} may have learned up to {self._batch:,} files "
                "that are not in the output, and learns them again now"
            )

    def page_facts(self) -> dict[str, Any]:
        from ramen.experiments import paper
        from ramen.experiments.provenance import versions

        model = self._model
        return {
            "model": model.name,
            "method": paper.title(model.method),
            "classes": self.identity.classes,
            "facts": {
                "service": self._client.url,
                "stream": self._request.stream,
                "device": f"{model.device}, {model.dtype}",
                "files per request": f"{self._batch:,}",
                "versions": f"ramen {versions().get('ramen')} (of the client)",
            },
        }

    def summary(self) -> dict[str, Any]:
        return {
            "server": self._client.url,
            "stream": self._request.stream,
            "state": None,
            "model": self._model.name,
            "method": self._model.method,
        }


def _stream_classes(client: Client, stream: str, classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """The classes of the stream, created if it is missing; ValueError if they are not ``classes``."""
    try:
        found = client.stream().classes
    except NoSuchStreamError:
        found = _created(client, classes)
    if classes is not None and found != classes:
        shown = ", ".join(found[:5]) + (f", ... ({len(found)})" if len(found) > 5 else "")
        raise ValueError(
            f"--classes: the stream {stream!r} has other classes ({shown}): leave --classes out to "
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
    """Results of a stream; files are read ahead, and sent one request after another."""

    resumed: tuple[Result, ...] = ()  # a service does not keep answers

    def __init__(self, client: Client, stream: str, batch: int, max_delay: float | None) -> None:
        self._client = client
        self._streams = DecodedStreams(_FileReader(client, stream), 0, batch, max_delay)

    def batches(self, sources: object) -> Generator[list[Result], None, None]:
        """The results of one request after the other."""
        with self._streams.open(expand(sources)) as stream:
            while batch := stream.batch():
                yield [answer.to_result() for answer in self._client.classify_loaded(batch)]


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
        return ServedAnswer.unanswered(self._stream, key, error)
