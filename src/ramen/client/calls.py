"""Operations as requests of httpx: what is sent, what makes an answer of it, and when it is sent again.

All of it is written as *steps*: generators of requests to send and of seconds to wait. ``Client`` and
``AsyncClient`` take these steps and do nothing else, so that both behave the same.
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
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np
from PIL import Image

from ramen.client.operations import (
    Classify,
    ConnectionLostError,
    GetModel,
    IsReady,
    Operation,
    RefusedImageError,
    SentImage,
    ServedAnswer,
    ServedModel,
    ServerError,
    ServerUnavailableError,
    UnexpectedReplyError,
    UnreachableError,
    error_for,
    from_json,
)
from ramen.images.file_checks import check_bytes, read_file, read_object
from ramen.utils import checks

if TYPE_CHECKING:
    import httpx

RAW_PIXELS = "application/x-ramen-uint8"
TOKEN_VARIABLE = "RAMEN_TOKEN"
IN_FLIGHT = 4  # requests at a time
MAX_BYTES = 2**26  # of one image, as services accept by default
_MAX_REQUEST = 2**25  # bytes of images in a request, unless a single one has more
_GRACE = 10.0  # seconds that a reply may come late: a batch that is computed at its deadline is answered
_CONNECT = 10.0  # seconds
_IDLE = 2.0  # seconds after which a connection is not used again; servers close theirs a little later
_PNG_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "I;16")
_FIRST, _LONGEST = 0.1, 5.0  # seconds between attempts, if the service does not say
_MOST_TIMES = 4  # as long as the service says
_JITTER = 0.25  # so that clients that were refused together do not come back together


@dataclass(frozen=True)
class Request:
    """One request: what httpx is given."""

    method: str
    path: str  # below the service's URL, quoted
    given: Mapping[str, Any]  # params, json, content, headers, files


T = TypeVar("T")
Loaded = SentImage | ServedAnswer  # an answer if the image could not be read
Steps = Generator[Request | float, Any, T]


# -- replies ------------------------------------------------------------------------------------------------


def _read(request: Request, response: "httpx.Response", read: Callable[[Any], T]) -> T:
    """What the reply says; a ``ServerError`` if it is none that was hoped for."""
    if not 200 <= response.status_code < 300:
        raise _refusal(response)
    try:
        return read(json.loads(response.content) if response.content else None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnexpectedReplyError(
            f"the reply to {request.method} {request.path} cannot be read: {error!r}: is this a Ramen "
            "service?",
            status=response.status_code,
        ) from None


def _refusal(response: "httpx.Response") -> ServerError:
    code, message, retry_after = "", "", _retry_after(response.headers)
    try:
        error = json.loads(response.content)["error"]
        code, message = str(error["code"]), str(error["message"])
        retry_after = error["retry_after_ms"] / 1000 if "retry_after_ms" in error else retry_after
    except (ValueError, KeyError, TypeError):  # from a proxy, or no Ramen service
        pass
    message = message or f"the server replied with status {response.status_code}"
    return error_for(response.status_code, code, message, retry_after)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):  # HTTP also allows a date there: then the pauses are the client's own
        return None


def as_server_error(error: "httpx.RequestError", url: str) -> ServerError:
    """What went wrong on the way to the service, or back."""
    import httpx

    found: ServerError
    words = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        found = UnreachableError(f"{url} cannot be reached: {words}", nothing_done=True)
        found.temporary = not _stays_wrong(error)
    elif isinstance(error, httpx.TransportError):
        found = ConnectionLostError(
            f"no reply from {url}: {words}; the request may have been carried out nevertheless"
        )
    else:
        found = ServerError(f"the reply of {url} cannot be read: {words}")
    found.__cause__ = error
    return found


def _stays_wrong(error: BaseException | None) -> bool:
    """Whether the name of the host, or its certificate, is the reason: trying again does not help."""
    while error is not None:
        if isinstance(error, ssl.SSLError | socket.gaierror):
            return True
        error = error.__cause__ or error.__context__
    return False


# -- requests -----------------------------------------------------------------------------------------------


def stream_path(stream: str) -> str:
    """The path of a stream; ValueError for a name that a URL cannot hold as one part."""
    if not isinstance(stream, str) or not stream.strip("."):
        raise ValueError(f"stream must be a name of letters, digits, '.', '_' and '-', got {stream!r}")
    return f"/v1/streams/{quote(stream, safe='')}"


def _request_for(operation: Operation[Any]) -> Request:
    """Any operation but the one that sends images."""
    method, path = operation.http
    if "{stream}" in path:
        path = stream_path(operation.stream) + path.removeprefix("/v1/streams/{stream}")  # type: ignore[attr-defined]
    sent = operation.content()
    return Request(method, path, {"params": sent} if method == "GET" else {"json": sent} if sent else {})


def _classify_request(images: Sequence[SentImage], stream: str, params: Mapping[str, Any]) -> Request:
    """Images that are all files, or all arrays of one shape."""
    arrays = [image.data for image in images if isinstance(image.data, np.ndarray)]
    body: dict[str, Any]
    if arrays:
        shape = ",".join(map(str, (len(arrays), *arrays[0].shape)))
        body = {
            "content": b"".join(array.tobytes() for array in arrays),
            "headers": {"Content-Type": RAW_PIXELS, "X-Shape": shape},
        }
    else:
        body = {"files": [("files", (_file_name(i.key), i.data, "application/octet-stream")) for i in images]}
    return Request(Classify.http[0], f"{stream_path(stream)}/classify", {"params": params, **body})


def _file_name(key: str) -> str:
    """A key as a file name of multipart: any text without control characters, never empty."""
    text = key.encode("utf-8", "backslashreplace").decode()
    return "".join(letter if letter.isprintable() else "?" for letter in text) or "image"


def _answers(images: Sequence[SentImage], stream: str, reply: Any) -> list[ServedAnswer]:
    found = reply["answers"]
    if len(found) != len(images):
        raise UnexpectedReplyError(f"expected {len(images)} answers, got {len(found)}")
    return [_answer(stream, image.key, values) for image, values in zip(images, found, strict=True)]


def _answer(stream: str, key: str, values: Mapping[str, Any]) -> ServedAnswer:
    """An answer of a reply, with the caller's own key in place of what was sent."""
    top = tuple((entry["label"], entry["probability"]) for entry in values["top"])
    error, sent_key = values.get("error"), values.get("key")
    if error is not None and isinstance(sent_key, str):
        error = key + error.removeprefix(sent_key) if error.startswith(sent_key) else error
    known = {"stream": stream, "key": key, "top": top, "error": error}
    answer: ServedAnswer = from_json(ServedAnswer, {**values, **known})
    return answer


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


# -- images -------------------------------------------------------------------------------------------------


def load_image(source: object, place: int, stream: str, max_bytes: int) -> Loaded:
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
    except FileNotFoundError:
        why = "no such file"
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ServedAnswer.unanswered(stream, key, f"{key} cannot be read as an image: {why}")


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
        if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] != 3 or 0 in value.shape:
            raise ValueError(f"an array must be uint8 of shape (H, W, 3), got {value.dtype} {value.shape}")
        return value.copy()  # the caller may write the next frame into the same array
    if isinstance(value, Image.Image):
        file = io.BytesIO()
        plain = value if value.mode in _PNG_MODES else value.convert("RGB")
        # with the EXIF data, which say how the image is to be turned
        plain.save(file, "PNG", compress_level=1, exif=value.getexif())
        return file.getvalue()
    if hasattr(value, "read"):
        return read_object(value, max_bytes)
    raise TypeError(
        "sources must be paths, bytes, binary file objects, PIL images, uint8 arrays, or pairs of a key and "
        f"one of these, got {type(value).__name__}"
    )


class ImageBatches:
    """Collects images until there are ``size`` of them, or too many bytes for one request."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._images: list[Loaded] = []
        self._bytes = 0

    def add(self, image: Loaded) -> list[list[Loaded]]:
        """Take an image; the requests that are complete now, none, one or two."""
        complete = []
        nbytes = getattr(image, "nbytes", 0)  # answers of unreadable images take none
        if self._bytes + nbytes > _MAX_REQUEST:
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


# -- when a request is sent again ---------------------------------------------------------------------------


@dataclass(frozen=True)
class RetrySettings:
    """How often to try; see ``Client``."""

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


# -- what both clients do -----------------------------------------------------------------------------------


class ServerConnection(ABC):
    """The settings of a client, and the steps of what it does. See ``Client`` for the arguments."""

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
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "ramen.Client needs the package httpx: pip install 'ramen-tta[client]'"
            ) from error
        self._httpx = httpx
        stream_path(stream)
        self.url, self._stream = _check_url(url), stream
        self._timeout = checks.number("timeout", timeout, 0, exclusive=True)
        self._retrying = RetrySettings(retries, retry_seconds, resend_uncertain)
        self._in_flight = checks.integer("in_flight", in_flight, 1)
        self._max_bytes = checks.integer("max_bytes", max_bytes, 1)
        self._model: ServedModel | None = None
        headers = {"Accept": "application/json"}
        if (known := _check_token(token)) is not None:
            headers["Authorization"] = f"Bearer {known}"
        self._http = self._open(  # httpx verifies certificates and does not follow redirects
            transport=transport,
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(timeout + _GRACE, connect=min(_CONNECT, timeout)),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE),
        )

    @abstractmethod
    def _open(self, **options: Any) -> Any:
        """A client of httpx."""

    def __repr__(self) -> str:  # a token must not appear in logs
        return f"{type(self).__name__}({self.url!r}, stream={self._stream!r})"

    def _named(self, stream: str | None) -> str:
        return self._stream if stream is None else stream

    def _load(self, source: object, place: int, stream: str) -> Loaded:
        return load_image(source, place, stream, self._max_bytes)

    def _steps(self, operation: Operation[T]) -> Steps[T]:
        """Any operation but the one that sends images."""
        kind = operation.reply
        return self._sent(
            _request_for(operation),
            lambda reply: from_json(kind, reply) if kind else None,
            operation.repeatable,
        )

    def _sent(self, request: Request, read: Callable[[Any], Any], repeatable: bool = False) -> Steps[Any]:
        attempts = Attempts(self._retrying, repeatable)
        while True:
            try:
                return _read(request, (yield request), read)
            except ServerError as error:
                delay = attempts.delay_after(error)
            yield delay

    def _ready(self) -> Steps[bool]:
        request = _request_for(IsReady())
        try:
            return _read(request, (yield request), lambda _: True)
        except ServerUnavailableError:
            return False

    def _batch_size(self, batch_size: int | None) -> Steps[int]:
        if batch_size is not None:
            return checks.integer("batch_size", batch_size, 1)
        if self._model is None:
            self._model = yield from self._steps(GetModel())
        return self._model.max_batch

    def _answered(
        self, images: Sequence[Loaded], stream: str, all_probabilities: bool
    ) -> Steps[list[ServedAnswer]]:
        """The answers for all images, in order; those that could not be read have one already."""
        params: dict[str, Any] = {"timeout_ms": max(1, round(self._timeout * 1000))}
        if all_probabilities:
            params["probabilities"] = "all"
        answered: list[ServedAnswer] = []
        for _, together in groupby((image for image in images if isinstance(image, SentImage)), _kind):
            answered += yield from self._sent_together(list(together), stream, params)
        answers = iter(answered)
        return [image if isinstance(image, ServedAnswer) else next(answers) for image in images]

    def _sent_together(
        self, images: list[SentImage], stream: str, params: Mapping[str, Any]
    ) -> Steps[list[ServedAnswer]]:
        # If the service refuses a request because of an image, which it does before it learns anything, its
        # images are sent one by one, so that one of them does not spoil the others.
        answered: list[ServedAnswer] = []
        request = _classify_request(images, stream, params)
        try:
            answered = yield from self._sent(request, partial(_answers, images, stream))
        except RefusedImageError as refused:
            if len(images) == 1:
                key, why = images[0].key, refused.message
                return [ServedAnswer.unanswered(stream, key, why if key in why else f"{key}: {why}")]
            for image in images:
                answered += yield from self._sent_together([image], stream, params)
        return answered


def _kind(image: SentImage) -> object:
    """Files go together, and so do arrays of one shape."""
    return "file" if isinstance(image.data, bytes) else image.data.shape


def _check_url(url: object) -> str:
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
    token = os.environ.get(TOKEN_VARIABLE) or None if token is None else token
    if token is None:
        return None
    if not isinstance(token, str):
        raise TypeError(f"token must be text, got {type(token).__name__}")
    if not token.isascii() or not token.isprintable() or not token.strip() or " " in token:
        raise ValueError("token must be printable ASCII text without blanks")  # without showing it
    return token
