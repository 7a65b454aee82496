"""What a service does: THE list of its operations, with what each is given, replies and may raise.

Whatever carries operations has one method, ``call``: the engine, the pipe between processes, and Ray. A new
operation is a class here, a method of the engine, a route, and a method of each client.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ramen.client.result import Result

STREAM_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_QUOTED = 80  # characters of a wrong name that a message repeats
RETRY_AFTER = 2.0  # seconds: about what an engine that has ended takes to come back
Reply = TypeVar("Reply")
Record = TypeVar("Record")

# -- errors -----------------------------------------------------------------------------------------


class ServerError(Exception):
    """A service did not do what it was asked for.

    The engine raises the same errors as the clients do: status, code and message are what the service sends.

    Attributes:
        status: The HTTP status; None if there was no answer.
        code: The service's own name for the reason, such as "overloaded"; empty if it gave none.
        message: The reason in words.
        retry_after: Seconds after which the service asks to try again; None if it does not say.
        nothing_done: Whether it is certain that the request had no effect, so that it may be sent again.
    """

    status: int | None = None
    code = ""
    nothing_done = False
    temporary = False  # whether the same request may succeed later

    def __init__(
        self,
        message: str,
        retry_after: float | None = None,
        *,
        status: int | None = None,
        code: str | None = None,
        nothing_done: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.retry_after = message, retry_after
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code
        if nothing_done is not None:
            self.nothing_done = nothing_done

    def __str__(self) -> str:
        known = " ".join(str(fact) for fact in (self.status, self.code) if fact)
        return f"{self.message} ({known})" if known else self.message


class InvalidRequestError(ServerError):
    """The request makes no sense to the service: a name, a parameter, the number or the kind of images."""

    status, code, nothing_done = 422, "invalid", True


class UnauthorizedError(ServerError):
    """The token is missing or not known to the service."""

    status, code, nothing_done = 401, "invalid_token", True


class ForbiddenError(ServerError):
    """The token does not allow this, or not in this stream."""

    status, code, nothing_done = 403, "scope", True


class NoSuchStreamError(ServerError):
    """There is no stream, or no answer, of this name."""

    status, code, nothing_done = 404, "unknown_stream", True


class ConflictError(ServerError):
    """It contradicts what is there: a stream with other classes, for example."""

    status, code, nothing_done = 409, "stream_exists", True


class RefusedImageError(ServerError):
    """An image cannot be decoded, or the request has too many bytes; nothing was learned."""

    status, code, nothing_done = 422, "undecodable", True


class ServerOverloadedError(ServerError):
    """Too much is waiting at the service, which took nothing of the request."""

    status, code, nothing_done, temporary = 429, "overloaded", True, True


class ServerUnavailableError(ServerError):
    """The service is starting, stopping, or not there at the moment; nothing was learned."""

    status, code, nothing_done, temporary = 503, "unavailable", True, True


class StoppingError(ServerUnavailableError):
    """The service is being stopped and takes nothing more."""

    code = "stopping"


class AnswerLostError(ServerUnavailableError):
    """Whoever worked on the request has ended, or cannot be reached: it may have been done, or not."""

    code, nothing_done = "answer_lost", False


class DeadlineExceededError(ServerError):
    """The images were not answered in time; if the service itself says so, nothing was learned from them."""

    status, code, nothing_done = 504, "deadline", True


class FailedError(ServerError):
    """The service failed, and its log says why."""

    status, code = 500, "internal"


class UnreachableError(ServerError):
    """No connection could be made, so that nothing was sent."""

    nothing_done, temporary = True, True


class ConnectionLostError(ServerError):
    """The connection ended, or the time was up, after the request was sent: it may have been carried out."""

    temporary = True


class UnexpectedReplyError(ServerError):
    """The reply is not that of a Ramen service, or the service failed."""


_BY_STATUS: dict[int, type[ServerError]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NoSuchStreamError,
    405: InvalidRequestError,
    409: ConflictError,
    413: RefusedImageError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: ServerOverloadedError,
    503: ServerUnavailableError,
    504: DeadlineExceededError,
}
_BY_CODE: dict[str, type[ServerError]] = {
    kind.code: kind for kind in (RefusedImageError, StoppingError, AnswerLostError)
}


def error_for(status: int, code: str, message: str, retry_after: float | None) -> ServerError:
    """The error of a reply.

    Args:
        status: Its status.
        code: The service's own code; empty if the reply is not from the service, but from a proxy perhaps.
        message: In words.
        retry_after: Seconds, if the reply says so.
    """
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, UnexpectedReplyError)
    # a proxy's 503 may also mean that the connection to the service ended after the request was passed on
    nothing_done = kind.nothing_done and (status < 500 or code != "")
    return kind(message, retry_after, status=status, code=code, nothing_done=nothing_done)


# -- names ------------------------------------------------------------------------------------------


def check_stream_name(name: object) -> str:
    """``name``, if a stream may have it: it is also the name of a folder.

    >>> check_stream_name("camera-1")
    'camera-1'
    """
    if not isinstance(name, str) or not re.fullmatch(STREAM_PATTERN, name):
        raise InvalidRequestError(
            "a stream's name must be 1 to 64 letters, digits, '.', '_' or '-', the first one a letter or a "
            f"digit, got {quoted(name)}"
        )
    return name


def quoted(name: object) -> str:
    """A wrong name for a message, which must not be as long as whatever was sent."""
    text = repr(name)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


# -- images and replies -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SentImage:
    """An image as a client sends it."""

    key: str  # the client's own name for it
    # A file's bytes, also as an array ``(n,)``, or pixels ``(H, W, 3)`` in uint8. An array must not change
    # until it is answered. Never a path: the engine opens nothing.
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
    """The answer for one image of a stream."""

    id: str  # names the answer when its true label is sent later; unique on the server. Empty for an error
    stream: str
    result: Result  # label, probabilities, what the classifier says without adaptation, support; or an error
    # of all classes, ``(C,)`` in fp32, in the order of the stream's classes; None for an error
    probabilities: NDArray[np.float32] | None
    queued_ms: float  # how long the image waited, decoding included
    computed_ms: float  # how long its batch took


@dataclass(frozen=True, eq=False)
class Answers(Sequence[StreamAnswer]):
    """The answers for the images of a request: numbers, until somebody needs text."""

    stream: str
    keys: tuple[str, ...]  # of all images
    errors: Mapping[int, str]  # why an image has no answer, by its place
    rows: NDArray[np.float64]  # one per image that has an answer, as ``Result.from_row`` reads it
    probabilities: NDArray[np.float32]  # of all classes, likewise
    names: Mapping[int, str]  # of the classes that the rows name, by their numbers
    version: int  # how many images the stream had seen after them
    retrieves: bool  # whether the method retrieves stored images
    start: str  # the first part of all ids
    first: int  # the number of the first answer; those that follow have the next ones
    queued_ms: float  # how long they waited, decoding included
    computed_ms: float  # how long their batch took

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        if place in self.errors:
            failed = Result.failed(self.keys[place], self.errors[place], self.version)
            return StreamAnswer("", self.stream, failed, None, self.queued_ms, self.computed_ms)
        row = place - sum(error < place for error in self.errors)
        result = Result.from_row(
            self.keys[place], self.rows[row].tolist(), self.names, self.version, retrieves=self.retrieves
        )
        number, probabilities = f"{self.start}-{self.first + row}", self.probabilities[row]
        return StreamAnswer(number, self.stream, result, probabilities, self.queued_ms, self.computed_ms)


@dataclass(frozen=True)
class ServedAnswer(Result):
    """The answer of a service for one image: a result, and what a service adds."""

    stream: str = ""
    id: str = ""  # names the answer when its true label is sent later (``feedback``); empty for an error
    probabilities: dict[str, float] | None = None  # of all classes by name, if they were asked for
    queued_ms: float = 0.0  # how long the image waited at the service
    computed_ms: float = 0.0  # how long its batch took

    @classmethod
    def unanswered(cls, stream: str, key: str, error: str) -> "ServedAnswer":
        """For an image that the service did not accept, or that could not be read and was not sent."""
        return cls(**vars(Result.failed(key, error, 0)), stream=stream)

    def to_result(self) -> Result:
        """The same as a predictor's result."""
        return Result(**{field.name: getattr(self, field.name) for field in fields(Result)})


@dataclass(frozen=True)
class ServedModel:
    """What a service serves."""

    name: str  # such as "ViT-B-16/openai"
    method: str  # the method that adapts
    classes: tuple[str, ...]  # the classes of streams that do not set their own
    image_size: tuple[int, int]  # height and width that images are resized to
    max_batch: int  # the most images in a request
    can_set_classes: bool  # whether a stream may have classes of its own: the model has a text tower
    device: str  # where it computes
    dtype: str  # the dtype of its weights


@dataclass(frozen=True)
class FeedbackCounts:
    """How right the answers were that a true label was sent for."""

    labels: int = 0  # how many true labels were matched with an answer
    correct: int = 0  # how many of these answers were right
    zero_shot_correct: int = 0  # how many would have been right without adaptation
    unknown: int = 0  # labels for answers that are not known, or no more: only the last ones are


@dataclass(frozen=True)
class StreamInfo:
    """One stream."""

    name: str
    classes: tuple[str, ...]
    method: str  # the method that adapts to it
    images: int  # answered since the stream was created or reset
    changed: int  # of these, how many adaptation gave another label
    fallbacks: int  # of these, how many were answered zero-shot because the adaptation failed
    errors: int  # images that could not be decoded
    entries: int | None  # entries in its memory; None while it is on disk, or if the method keeps none
    capacity: int | None  # the most entries that its memory can hold; None likewise
    memory_bytes: int  # what its memory takes now; 0 while it is on disk
    resident: bool  # whether it is in memory, and not only on disk
    created: float  # when it was created, in seconds since 1970
    last_used: float | None  # when its last image came, likewise; None if none has come
    feedback: FeedbackCounts  # how right its answers were
    recovered: str | None = None  # what had to be repaired when its state was last read, in words


@dataclass(frozen=True)
class StreamActivity:
    """What the dashboard shows of one stream, over its last answers (at most 1,000)."""

    entropy: float | None  # mean entropy of the answers, in nats
    zero_shot_entropy: float | None  # the same without adaptation
    changed_share: float | None  # share of answers that adaptation changed
    # how often each class was answered, the most frequent first, at most 20
    class_mix: tuple[tuple[str, int], ...]
    # the last ones that changed, the newest first; empty unless they are kept
    changed_images: tuple["ChangedImage", ...]
    answers: int = 0  # how many answers these are


@dataclass(frozen=True)
class ChangedImage:
    """An image that adaptation gave another label."""

    key: str  # the client's name for it
    label: str  # the answer, with its probability
    probability: float
    zero_shot_label: str  # the answer without adaptation, with its probability
    zero_shot_probability: float
    time: float  # when, in seconds since 1970
    thumbnail: bytes


@dataclass(frozen=True)
class EngineStatistics:
    """The whole engine. Counters only grow; rates and percentiles are over the last ten seconds."""

    images: int  # answered
    requests: int  # answered
    batches: int  # computed
    changed: int  # images that adaptation gave another label
    fallbacks: int  # images answered zero-shot because the adaptation failed
    undecodable: int  # images that could not be decoded
    overloaded: int  # requests refused because too much was waiting
    expired: int  # requests that were not answered in time
    cancelled: int  # requests whose client went away
    waiting_images: int  # images that wait or are being answered now
    waiting_bytes: int  # their bytes
    queue_images: int  # the most that may wait
    queue_bytes: int  # likewise in bytes
    images_per_second: float  # answered
    # percentiles "p50", "p90", "p99" from arrival to answer; empty if nothing was answered
    latency_ms: dict[str, float]
    compute_ms: dict[str, float]  # the same of a batch
    mean_batch: float | None  # images per batch
    streams: int  # how many there are
    resident_streams: int  # how many of these are in memory
    resident_bytes: int  # what their memories take
    streams_budget: int  # what they may take
    parked: int  # how many times a stream was evicted to disk
    store_failures: int  # how many times a state could not be written

    COUNTERS: ClassVar[tuple[str, ...]] = (
        *("images", "requests", "batches", "changed", "fallbacks", "undecodable", "overloaded", "expired"),
        *("cancelled", "parked", "store_failures"),
    )

    @classmethod
    def merged(cls, reports: Sequence["EngineStatistics"]) -> "EngineStatistics":
        """Several engines as one; percentiles cannot be added up, and are those of the slowest."""
        busy = [(one.images_per_second, one.mean_batch) for one in reports if one.mean_batch]
        batches = sum(images / mean for images, mean in busy)
        others: dict[str, Any] = {
            "latency_ms": _longest([one.latency_ms for one in reports]),
            "compute_ms": _longest([one.compute_ms for one in reports]),
            "mean_batch": sum(images for images, _ in busy) / batches if batches else None,
        }
        names = {field.name for field in fields(cls)} - others.keys()
        return cls(**others, **{name: sum(getattr(one, name) for one in reports) for name in names})


def _longest(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for report in reports for name in report}
    return {name: max(report[name] for report in reports if name in report) for name in sorted(names)}


@dataclass(frozen=True)
class StreamsPage:
    """Streams by name, and what to pass as ``after`` for those that follow; None if none do."""

    streams: tuple[StreamInfo, ...]
    next: str | None


def from_json(kind: Any, value: Any) -> Any:
    """What a reply in JSON stands for; fields that are not known are passed over: a newer service has more.

    Args:
        kind: A record of this module, or the type of one of its fields.
        value: The reply.
    """
    if hasattr(kind, "__dataclass_fields__"):
        known = fields(kind)
        missing = [
            f.name
            for f in known
            if f.name not in value and f.default is MISSING and f.default_factory is MISSING
        ]
        if missing:
            raise UnexpectedReplyError(f"the reply has no {', '.join(missing)}: is this a Ramen service?")
        hints = get_type_hints(kind)
        return kind(**{f.name: from_json(hints[f.name], value[f.name]) for f in known if f.name in value})
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return tuple(from_json(inner, one) for one in value)
    return base64.b64decode(value) if kind is bytes else value


# -- operations -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation(Generic[Reply]):
    """Something that a service does.

    Attributes:
        name: Of the engine's method that does it, which takes the fields.
        scopes: A token needs one of these; any token will do if there are none; None without a token.
        http: Method and path, in which ``{stream}`` stands for the field of that name. The other fields are
            the query of a GET, and the JSON body of anything else.
        reply: The record that the reply in JSON is read as; None if there is none.
        errors: Statuses beside those that any request may get.
        repeatable: Whether doing it twice does no harm.
    """

    name: ClassVar[str]
    scopes: ClassVar[tuple[str, ...] | None]
    http: ClassVar[tuple[str, str]]
    reply: ClassVar[Any] = None
    errors: ClassVar[tuple[int, ...]] = (404, 409, 422)
    repeatable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        BY_NAME[cls.name] = cls

    def content(self) -> dict[str, Any]:
        """The query or the body: all fields that are not in the path."""
        path = self.http[1]
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and f"{{{name}}}" not in path
        }

    def merged(self, replies: Sequence[Reply | None]) -> Reply:
        """What several engines reply, each of which has a part of the streams.

        Args:
            replies: None for an engine that cannot be reached.
        """
        for reply in replies:
            if reply is not None:
                return reply
        raise ServerUnavailableError("no engine can be reached at the moment", RETRY_AFTER)


BY_NAME: dict[str, type[Operation[Any]]] = {}  # all operations


@dataclass(frozen=True)
class Classify(Operation[Sequence[StreamAnswer]]):
    """One answer per image, in order; if the caller goes away, images that still wait are dropped.

    ``timeout`` is in seconds: a DeadlineExceededError if the images still wait then.
    """

    name, scopes = "classify", ("classify",)
    http, errors = ("POST", "/v1/streams/{stream}/classify"), (404, 409)
    stream: str
    images: Sequence[SentImage]
    timeout: float | None = None


@dataclass(frozen=True)
class CreateStream(Operation[tuple[StreamInfo, bool]]):
    """Create a stream unless it exists with these classes; the engine also says whether it is new."""

    name, scopes, http = "create_stream", ("manage",), ("PUT", "/v1/streams/{stream}")
    reply, errors, repeatable = StreamInfo, (409, 422), True
    stream: str
    classes: Sequence[str] | None = None


@dataclass(frozen=True)
class ListStreams(Operation[list[StreamInfo]]):
    """List streams by name, those behind ``after`` that begin with ``prefix``."""

    name, scopes, http = "streams", ("classify", "manage"), ("GET", "/v1/streams")
    reply, errors, repeatable = StreamsPage, (422,), True
    after: str = ""
    limit: int = 100
    prefix: str = ""

    def merged(self, replies: Sequence[list[StreamInfo] | None]) -> list[StreamInfo]:
        """The first ones of all; an error if some cannot be known."""
        known = [reply for reply in replies if reply is not None]
        if len(known) < len(replies):
            message = "some of the streams cannot be listed at the moment: the engine that has them is gone"
            raise ServerUnavailableError(message, RETRY_AFTER)
        return sorted((info for reply in known for info in reply), key=lambda info: info.name)[: self.limit]


@dataclass(frozen=True)
class GetStream(Operation[StreamInfo]):
    """Inspect a stream."""

    name, scopes, http = "stream", ("classify", "manage"), ("GET", "/v1/streams/{stream}")
    reply, errors, repeatable = StreamInfo, (404, 422), True
    stream: str


@dataclass(frozen=True)
class GetActivity(Operation[StreamActivity]):
    """What happened in a stream lately."""

    name, scopes, http = "activity", ("classify", "manage"), ("GET", "/v1/streams/{stream}/activity")
    reply, errors, repeatable = StreamActivity, (404, 422), True
    stream: str


@dataclass(frozen=True)
class Reset(Operation[StreamInfo]):
    """Forget what a stream learned."""

    name, scopes, http, reply = "reset", ("manage",), ("POST", "/v1/streams/{stream}/reset"), StreamInfo
    stream: str


@dataclass(frozen=True)
class Snapshot(Operation[StreamInfo]):
    """Return when everything that a stream learned is on disk."""

    name, scopes, http = "snapshot", ("manage",), ("POST", "/v1/streams/{stream}/snapshot")
    reply, repeatable = StreamInfo, True
    stream: str


@dataclass(frozen=True)
class Delete(Operation[None]):
    """Remove a stream, and what it learned from the disk."""

    name, scopes, http = "delete", ("manage",), ("DELETE", "/v1/streams/{stream}")
    stream: str


@dataclass(frozen=True)
class SetClasses(Operation[StreamInfo]):
    """Give a stream other classes; what it learned with the old ones is forgotten."""

    name, scopes, http = "set_classes", ("manage",), ("PUT", "/v1/streams/{stream}/classes")
    reply = StreamInfo
    stream: str
    classes: Sequence[str]


@dataclass(frozen=True)
class Feedback(Operation[FeedbackCounts]):
    """Send true labels, as pairs of an answer's id and a class; nothing is learned from them."""

    name, scopes, http = "feedback", ("classify",), ("POST", "/v1/streams/{stream}/feedback")
    reply = FeedbackCounts
    stream: str
    labels: Sequence[Sequence[str]]

    def content(self) -> dict[str, Any]:
        """The pairs by their names."""
        return {"labels": [{"id": answer, "label": label} for answer, label in self.labels]}


@dataclass(frozen=True)
class GetStatistics(Operation[EngineStatistics]):
    """The whole engine: counters, queue, latency, streams."""

    name, scopes, http = "statistics", ("metrics", "manage"), ("GET", "/v1/statistics")
    reply, errors, repeatable = EngineStatistics, (), True

    def merged(self, replies: Sequence[EngineStatistics | None]) -> EngineStatistics:
        """Those of the engines that can be reached."""
        return EngineStatistics.merged([reply for reply in replies if reply is not None])


@dataclass(frozen=True)
class GetModel(Operation[ServedModel]):
    """What is served."""

    name, scopes, http = "model", (), ("GET", "/v1/model")
    reply, errors, repeatable = ServedModel, (), True


@dataclass(frozen=True)
class IsReady(Operation[bool]):
    """Whether images can be answered now."""

    name, scopes, http, errors, repeatable = "ready", None, ("GET", "/readyz"), (503,), True

    def merged(self, replies: Sequence[bool | None]) -> bool:
        """Whether one of them is: images for the others wait."""
        return any(replies)


def operation_from(name: object, values: Mapping[str, Any]) -> Operation[Any]:
    """An operation that was sent as plain values; ValueError for one that is not in the list."""
    kind = BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"operation must be one of {', '.join(BY_NAME)}, got {quoted(name)}")
    return kind(**values)
