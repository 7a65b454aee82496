"""Each request of the service's API as a value, with what makes an answer of its reply; nothing is sent here.

``Client`` and ``AsyncClient`` send these and do nothing else, so that both behave the same.
"""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import groupby
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import numpy as np

from ramen.serve.client.errors import RefusedImageError, UnexpectedReplyError, error_for
from ramen.serve.client.served_answer import (
    ServedAnswer,
    answer_from_json,
    feedback_from_json,
    model_from_json,
    statistics_from_json,
    stream_from_json,
)
from ramen.serve.engine.answers import SentImage
from ramen.serve.engine.stream_info import EngineStatistics, FeedbackCounts, StreamInfo
from ramen.serve.http.backend import ServedModel

T = TypeVar("T")
PAGE = 100  # streams in a reply
RAW_PIXELS = "application/x-ramen-uint8"


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
        "POST",
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


def create_stream(stream: str, classes: Sequence[str] | None) -> ServerCall[StreamInfo]:
    """Create a stream unless it is there."""
    body = {} if classes is None else {"classes": _class_list(classes)}
    return ServerCall("PUT", stream_path(stream), stream_from_json, repeatable=True, body={"json": body})


def set_classes(stream: str, classes: Sequence[str]) -> ServerCall[StreamInfo]:
    """Give a stream other classes."""
    body = {"classes": _class_list(classes)}
    return ServerCall("PUT", f"{stream_path(stream)}/classes", stream_from_json, body={"json": body})


def _class_list(classes: Sequence[str]) -> list[str]:
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise TypeError(f"classes must be a sequence of names, got {classes!r}")
    return list(classes)


def list_streams(prefix: str, after: str) -> ServerCall[tuple[list[StreamInfo], str | None]]:
    """The next streams by name, and what to pass as ``after`` for those that follow; None if none do."""
    params = {"prefix": prefix, "after": after, "limit": PAGE}
    return ServerCall("GET", "/v1/streams", _streams, repeatable=True, params=params)


def _streams(reply: Any) -> tuple[list[StreamInfo], str | None]:
    return [stream_from_json(values) for values in reply["streams"]], reply["next"]


def get_stream(stream: str) -> ServerCall[StreamInfo]:
    """One stream."""
    return ServerCall("GET", stream_path(stream), stream_from_json, repeatable=True)


def delete_stream(stream: str) -> ServerCall[None]:
    """Remove a stream and its state."""
    return ServerCall("DELETE", stream_path(stream), _nothing)


def reset_stream(stream: str) -> ServerCall[StreamInfo]:
    """Forget what was learned."""
    return ServerCall("POST", f"{stream_path(stream)}/reset", stream_from_json)


def snapshot_stream(stream: str) -> ServerCall[StreamInfo]:
    """Have everything that was learned on disk."""
    return ServerCall("POST", f"{stream_path(stream)}/snapshot", stream_from_json, repeatable=True)


def send_feedback(
    stream: str, labels: Mapping[str, str] | Iterable[tuple[str, str]]
) -> ServerCall[FeedbackCounts]:
    """True labels of answers."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    body = {"labels": [{"id": answer, "label": label} for answer, label in pairs]}
    return ServerCall("POST", f"{stream_path(stream)}/feedback", feedback_from_json, body={"json": body})


def get_model() -> ServerCall[ServedModel]:
    """What is served."""
    return ServerCall("GET", "/v1/model", model_from_json, repeatable=True)


def get_statistics() -> ServerCall[EngineStatistics]:
    """The whole service."""
    return ServerCall("GET", "/v1/statistics", statistics_from_json, repeatable=True)


def get_readiness() -> ServerCall[None]:
    """Whether images can be answered now."""
    return ServerCall("GET", "/readyz", _nothing, repeatable=True)


def _nothing(reply: Any) -> None:
    return None
