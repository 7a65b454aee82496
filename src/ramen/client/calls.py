"""Operations as requests of httpx: what is sent, what makes an answer of it, and when it is sent again.

``Client`` and ``AsyncClient`` send these and do nothing else, so that both behave the same.
"""

import io
import json
import numbers
import os
import random
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np
from PIL import Image

from ramen.client.operations import (
    Classify,
    ConnectionLostError,
    Operation,
    RefusedImageError,
    SentImage,
    ServedAnswer,
    ServedModel,
    ServerError,
    UnexpectedReplyError,
    UnreachableError,
    error_for,
    from_json,
)
from ramen.images.file_checks import check_bytes, read_file, read_object
from ramen.utils import checks

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
RAW_PIXELS = "application/x-ramen-uint8"
TOKEN_VARIABLE = "RAMEN_TOKEN"
IN_FLIGHT = 4  # requests at a time
_GRACE = (
    10.0  # seconds that a reply may come late: a batch that is being computed at its deadline is answered
)
_CONNECT = 10.0  # seconds
_IDLE = 2.0  # seconds after which a connection is not used again; servers close theirs a little later
_MAX_REQUEST = 2**25  # bytes of images in a request, unless a single one has more
MAX_BYTES = 2**26  # of one image, as services accept by default
_PNG_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "I;16")
_FIRST, _LONGEST = 0.1, 5.0  # seconds between attempts, if the service does not say
_MOST_TIMES = 4  # as long as the service says
_JITTER = 0.25  # so that clients that were refused together do not come back together


@dataclass(frozen=True)
class ServerCall(Generic[T]):
    """One request.

    Attributes:
        method: Of HTTP.
        path: Below the service's URL, quoted.
        read: Makes the answer of a reply's JSON.
        repeatable: Whether sending it twice does no harm, even if both are carried out.
        params: The query.
        body: What is sent: the arguments ``json``, ``content``, ``headers`` or ``files`` of httpx.
    """

    method: str
    path: str
    read: Callable[[Any], T]
    repeatable: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, status: int, headers: Mapping[str, str], content: bytes) -> T:
        """What the reply says; a ``ServerError`` if it is none that was hoped for."""
        if not 200 <= status < 300:
            raise reply_error(status, headers, content)
        try:
            return self.read(json.loads(content) if content else None)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnexpectedReplyError(
                f"the reply to {self.method} {self.path} cannot be read: {error!r}: is this a Ramen service?",
                status=status,
            ) from None


def reply_error(status: int, headers: Mapping[str, str], content: bytes) -> Exception:
    """The error of a reply that is no success."""
    code, message, retry_after = "", "", _retry_after(headers)
    try:
        error = json.loads(content)["error"]
        code, message = str(error["code"]), str(error["message"])
        retry_after = error["retry_after_ms"] / 1000 if "retry_after_ms" in error else retry_after
    except (ValueError, KeyError, TypeError):  # from a proxy, or no Ramen service
        pass
    return error_for(status, code, message or f"the server replied with status {status}", retry_after)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The header in seconds; a date is also allowed in HTTP."""
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        now = parsedate_to_datetime(headers["date"])
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    except (ValueError, TypeError, KeyError):
        return None


# -- images -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassifyOptions:
    """What goes along with images.

    Attributes:
        stream: The stream they belong to.
        timeout: Seconds in which the service is to answer.
        all_probabilities: Whether to ask for the probabilities of all classes.
    """

    stream: str
    timeout: float
    all_probabilities: bool = False


Loaded = SentImage | ServedAnswer
Steps = Generator[ServerCall[list[ServedAnswer]], list[ServedAnswer], list[ServedAnswer]]


def classify_steps(images: Sequence[Loaded], options: ClassifyOptions) -> Steps:
    """The requests for some images, one after another; returns the answers for all of them, in order.

    Files go together, and so do arrays of one shape. If the service refuses a request because of an image,
    which it does before it learns anything, its images are sent one by one, so that one of them does not
    spoil the others.

    Args:
        images: What to send; answers of images that could not be read are passed through.
        options: What goes along.
    """
    answered: list[ServedAnswer] = []
    sent = (image for image in images if isinstance(image, SentImage))
    for _, group in groupby(sent, _kind):
        together = list(group)
        try:
            answered.extend((yield classify_call(together, options)))
        except RefusedImageError as error:
            if len(together) == 1:
                answered.append(_refused(together[0], options.stream, error))
            else:
                for image in together:
                    answered.extend((yield from classify_steps([image], options)))
    answers = iter(answered)
    return [image if isinstance(image, ServedAnswer) else next(answers) for image in images]


def _kind(image: SentImage) -> object:
    return "file" if isinstance(image.data, bytes) else image.data.shape


def _refused(image: SentImage, stream: str, error: RefusedImageError) -> ServedAnswer:
    named = error.message if image.key in error.message else f"{image.key}: {error.message}"
    return ServedAnswer.failed(stream, image.key, named)


def classify_call(images: Sequence[SentImage], options: ClassifyOptions) -> ServerCall[list[ServedAnswer]]:
    """Images that are all files, or all arrays of one shape."""
    params: dict[str, Any] = {"timeout_ms": max(1, round(options.timeout * 1000))}
    if options.all_probabilities:
        params["probabilities"] = "all"
    return ServerCall(
        Classify.http[0],
        f"{stream_path(options.stream)}/classify",
        partial(_answers, options.stream, [image.key for image in images]),
        params=params,
        body=_body(images),
    )


def _body(images: Sequence[SentImage]) -> dict[str, Any]:
    arrays = [image.data for image in images if isinstance(image.data, np.ndarray)]
    if arrays:
        shape = ",".join(map(str, (len(arrays), *arrays[0].shape)))
        return {
            "content": b"".join(array.tobytes() for array in arrays),
            "headers": {"Content-Type": RAW_PIXELS, "X-Shape": shape},
        }
    return {"files": [("files", (_file_name(i.key), i.data, "application/octet-stream")) for i in images]}


def _file_name(key: str) -> str:
    """A key as a file name of multipart: any text without control characters, never empty."""
    text = key.encode("utf-8", "backslashreplace").decode()
    return "".join(letter if letter.isprintable() else "?" for letter in text) or "image"


def answer_from_json(stream: str, key: str, values: Mapping[str, Any]) -> ServedAnswer:
    """An answer of a reply, with the caller's own key in place of what was sent."""
    top = tuple((entry["label"], entry["probability"]) for entry in values["top"])
    error, sent_key = values.get("error"), values.get("key")
    if error is not None and isinstance(sent_key, str):
        error = key + error.removeprefix(sent_key) if error.startswith(sent_key) else error
    known = {"stream": stream, "key": key, "top": top, "error": error}
    answer: ServedAnswer = from_json(ServedAnswer, {**values, **known})
    return answer


def _answers(stream: str, keys: Sequence[str], reply: Any) -> list[ServedAnswer]:
    found = reply["answers"]
    if len(found) != len(keys):
        raise UnexpectedReplyError(f"expected {len(keys)} answers, got {len(found)}")
    return [answer_from_json(stream, key, values) for key, values in zip(keys, found, strict=True)]


# -- streams and the service ------------------------------------------------------------------------


def stream_path(stream: str) -> str:
    """The path of a stream; ValueError for a name that a URL cannot hold as one part."""
    if not isinstance(stream, str) or not stream.strip("."):
        raise ValueError(f"stream must be a name of letters, digits, '.', '_' and '-', got {stream!r}")
    return f"/v1/streams/{quote(stream, safe='')}"


def call_for(operation: Operation[Any]) -> ServerCall[Any]:
    """Any operation but the one that sends images."""
    method, path = operation.http
    if "{stream}" in path:
        path = stream_path(operation.stream) + path.removeprefix("/v1/streams/{stream}")  # type: ignore[attr-defined]
    sent = operation.content()
    given: dict[str, Any] = {"params": sent} if method == "GET" else {"body": {"json": sent}} if sent else {}
    return ServerCall(method, path, partial(_reply, operation.reply), operation.repeatable, **given)


def _reply(kind: Any, reply: Any) -> Any:
    return None if kind is None else from_json(kind, reply)


def class_list(classes: Sequence[str] | None) -> list[str] | None:
    """Class names as they are sent."""
    if classes is None:
        return None
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise TypeError(f"classes must be a sequence of names, got {classes!r}")
    return list(classes)


def label_pairs(labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """True labels as they are sent."""
    return list(labels.items() if isinstance(labels, Mapping) else labels)


# -- images ----------------------------------------------------------------------------------------------


def load_image(source: object, place: int, stream: str, max_bytes: int) -> SentImage | ServedAnswer:
    """The image to send, or the answer of one that cannot be read, which names it and the reason.

    Args:
        source: A path, ``bytes``, a binary file object, a PIL image, a uint8 array ``(H, W, 3)``, or a pair
            of a key and one of these. TypeError for something else.
        place: In the sequence of sources, for the key of those that have none.
        stream: The stream that it is for.
        max_bytes: The most bytes that are read from a file.
    """
    key, value = _named(source, place)
    try:
        return SentImage(key, _data(value, max_bytes))
    except (OSError, ValueError) as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else _reason(error)
        return ServedAnswer.failed(stream, key, f"{key} cannot be read as an image: {why}")


def _named(source: object, place: int) -> tuple[str, Any]:
    if isinstance(source, tuple):
        if len(source) != 2 or not isinstance(source[0], str | numbers.Integral):
            raise TypeError(
                f"sources: a tuple must be a key (text or a whole number) and an image, got {source!r}"
            )
        return str(source[0]), source[1]
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source), source
    return f"image {place}", source


def _data(value: Any, max_bytes: int) -> Any:
    if isinstance(value, str | os.PathLike):
        return read_file(value, max_bytes)
    if isinstance(value, bytes | bytearray | memoryview):
        check_bytes(memoryview(value).nbytes, max_bytes)
        return bytes(value)
    if isinstance(value, np.ndarray):
        return _pixels(value)
    if isinstance(value, Image.Image):
        return _encoded(value)
    if hasattr(value, "read"):
        return read_object(value, max_bytes)
    raise TypeError(
        "sources must be paths, bytes, binary file objects, PIL images, uint8 arrays, or pairs of a key and "
        f"one of these, got {type(value).__name__}"
    )


def _pixels(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ValueError(f"an array must be uint8 of shape (H, W, 3), got {array.dtype} {array.shape}")
    return array.copy()  # the caller may write the next frame into the same array


def _encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    plain = image if image.mode in _PNG_MODES else image.convert("RGB")
    # with the EXIF data, which say how the image is to be turned
    plain.save(file, "PNG", compress_level=1, exif=image.getexif())
    return file.getvalue()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class ImageBatches:
    """Collects images until there are enough for a request.

    Args:
        size: The most images in a request.
        max_bytes: The most bytes of them, unless a single image has more.
    """

    def __init__(self, size: int, max_bytes: int) -> None:
        self._size, self._max_bytes = size, max_bytes
        self._images: list[Loaded] = []
        self._bytes = 0

    def add(self, image: Loaded) -> list[list[Loaded]]:
        """Take an image; the requests that are complete now, none, one or two."""
        complete = []
        nbytes = getattr(image, "nbytes", 0)  # answers of unreadable images take none
        if self._images and self._bytes + nbytes > self._max_bytes:
            complete += self.rest()
        self._images.append(image)
        self._bytes += nbytes
        if len(self._images) == self._size:
            complete += self.rest()
        return complete

    def rest(self) -> list[list[Loaded]]:
        """What was not enough for a request so far."""
        images, self._images, self._bytes = self._images, [], 0
        return [images] if images else []


# -- when a request is sent again ------------------------------------------------------------------------


@dataclass(frozen=True)
class RetrySettings:
    """How often to try.

    Attributes:
        retries: The most times that a request is sent again.
        retry_seconds: No request is sent again later than this after it was first sent.
        resend_uncertain: Also send again what the service may have carried out.
    """

    retries: int
    retry_seconds: float
    resend_uncertain: bool = False

    def __post_init__(self) -> None:
        checks.integer("retries", self.retries, 0)
        checks.number("retry_seconds", self.retry_seconds, 0)
        checks.flag("resend_uncertain", self.resend_uncertain)


class Attempts:
    """The attempts of one request.

    Args:
        settings: How often to try.
        repeatable: Whether carrying out the request twice does no harm.
        clock: The time in seconds.
        draw: A random number from 0 to 1.
    """

    def __init__(
        self,
        settings: RetrySettings,
        repeatable: bool,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._repeatable = settings, repeatable
        self._clock, self._draw = clock, draw
        self._end = clock() + settings.retry_seconds
        self._failed = 0

    def delay_after(self, error: ServerError) -> float:
        """Seconds until the next attempt; raises the error if there is to be none."""
        safe = error.nothing_done or self._repeatable or self._settings.resend_uncertain
        if not (error.temporary and safe) or self._failed >= self._settings.retries:
            raise error
        delay = min(_LONGEST, _FIRST * 2.0**self._failed)
        if error.retry_after is not None:  # the service knows better, but it may be wrong for many clients
            delay = max(error.retry_after, min(delay, _MOST_TIMES * error.retry_after))
        delay *= 1 + _JITTER * self._draw()
        self._failed += 1
        if self._clock() + delay > self._end:
            raise error
        return delay


# -- the connection --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConnectionSettings:
    """Where the service is, and how to talk to it; see ``Client``.

    Attributes:
        url: Without a slash at its end.
        token: None if there is none.
        stream: The stream that is used if none is named.
        timeout: Seconds in which the service is to answer a request.
        retrying: When a request is sent again.
        in_flight: Requests at a time.
        max_bytes: The most bytes that are read from a file.
    """

    url: str
    token: str | None
    stream: str
    timeout: float
    retrying: RetrySettings
    in_flight: int = IN_FLIGHT
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", check_url(self.url))
        object.__setattr__(self, "token", _check_token(self.token))
        stream_path(self.stream)
        checks.number("timeout", self.timeout, 0, exclusive=True)
        checks.integer("in_flight", self.in_flight, 1)
        checks.integer("max_bytes", self.max_bytes, 1)

    @property
    def max_request_bytes(self) -> int:
        """The most bytes of images that are put into one request, unless a single image has more."""
        return _MAX_REQUEST

    def __repr__(self) -> str:  # a token must not appear in logs
        return f"{self.url!r}, stream={self.stream!r}"

    def httpx_options(self) -> dict[str, Any]:
        """For httpx, which verifies certificates and does not follow redirects."""
        httpx = import_httpx()
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return {
            "base_url": self.url,
            "headers": {"Accept": "application/json", **headers},
            "timeout": httpx.Timeout(self.timeout + _GRACE, connect=min(_CONNECT, self.timeout)),
            "limits": httpx.Limits(max_connections=None, keepalive_expiry=_IDLE),
        }


def check_url(url: object) -> str:
    """The URL of a service, without a slash at its end; ValueError if it is none."""
    if not isinstance(url, str):
        raise TypeError(f"url must be text such as 'http://localhost:8000', got {type(url).__name__}")
    parts = urlsplit(url)
    if "@" in parts.netloc:  # not shown: it may be a password
        raise ValueError("url must not contain a user or a password: use token, or the variable RAMEN_TOKEN")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url must start with http:// or https:// and name a host, got {url!r}")
    if parts.query or parts.fragment:
        raise ValueError(f"url must have neither a query nor a fragment, got {url!r}")
    return url.rstrip("/")


def _check_token(token: object) -> str | None:
    if token is None:
        token = os.environ.get(TOKEN_VARIABLE) or None
    if token is None:
        return None
    if not isinstance(token, str):
        raise TypeError(f"token must be text, got {type(token).__name__}")
    if not token.isascii() or not token.isprintable() or not token.strip() or " " in token:
        raise ValueError("token must be printable ASCII text without blanks")  # without showing it
    return token


def import_httpx() -> Any:
    """The package; ModuleNotFoundError, with what to install, if it is missing."""
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "ramen.Client needs the package httpx: pip install 'ramen-tta[client]'"
        ) from error
    return httpx


def as_server_error(error: "httpx.RequestError", url: str) -> ServerError:
    """What went wrong on the way to the service, or back."""
    httpx = import_httpx()
    words = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        unreachable = UnreachableError(f"{url} cannot be reached: {words}", nothing_done=True)
        unreachable.temporary = not _stays_wrong(error)
        return unreachable
    if isinstance(error, httpx.TransportError):
        return ConnectionLostError(
            f"no reply from {url}: {words}; the request may have been carried out nevertheless"
        )
    return ServerError(f"the reply of {url} cannot be read: {words}")


def _stays_wrong(error: BaseException | None) -> bool:
    """Whether the name of the host, or its certificate, is the reason: trying again does not help."""
    while error is not None:
        if isinstance(error, ssl.SSLError | socket.gaierror):
            return True
        error = error.__cause__ or error.__context__
    return False


class ServerConnection(ABC):
    """What clients have in common: their settings. See ``Client`` for the arguments."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        stream: str = "default",
        *,
        timeout: float = 30.0,
        retries: int = 8,
        retry_seconds: float = 60.0,
        resend_uncertain: bool = False,
        in_flight: int = IN_FLIGHT,
        max_bytes: int = MAX_BYTES,
        transport: Any = None,
    ) -> None:
        retrying = RetrySettings(retries, retry_seconds, resend_uncertain)
        self._settings = ConnectionSettings(url, token, stream, timeout, retrying, in_flight, max_bytes)
        self._httpx = import_httpx()
        self._http = self._open(transport=transport, **self._settings.httpx_options())
        self._model: ServedModel | None = None

    @abstractmethod
    def _open(self, **options: Any) -> Any:
        """A client of httpx."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings!r})"

    @property
    def url(self) -> str:
        """Where the service is."""
        return self._settings.url

    def _attempts(self, call: ServerCall[Any]) -> Attempts:
        return Attempts(self._settings.retrying, call.repeatable)

    def _load(self, source: object, place: int, stream: str) -> Loaded:
        return load_image(source, place, stream, self._settings.max_bytes)

    def _collected(self, batch_size: int) -> ImageBatches:
        return ImageBatches(batch_size, self._settings.max_request_bytes)

    def _options(self, stream: str | None, all_probabilities: bool) -> ClassifyOptions:
        return ClassifyOptions(self._named(stream), self._settings.timeout, all_probabilities)

    def _named(self, stream: str | None) -> str:
        return self._settings.stream if stream is None else stream
