"""Bodies of requests: read within limits of bytes and time, and never more of them than fit in memory.

Their images are a file, several as multipart or base64, or plain pixels.
"""

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from ramen.client.operations import SentImage
from ramen.serve.http.errors import ApiError, from_pydantic
from ramen.serve.http.protocol import Memory, MemoryFor, rest_of_body
from ramen.serve.http.schemas import MAX_KEY, ImagesJson
from ramen.serve.http.service import Service, client_gone, facts_of
from ramen.utils.checks import readable_bytes

T = TypeVar("T")
RAW_PIXELS = "application/x-ramen-uint8"
_ANY_FILE = "application/octet-stream"
IMAGE_TYPES = tuple(f"image/{kind}" for kind in ("jpeg", "png", "webp", "bmp", "gif", "tiff"))
_TYPES = (*IMAGE_TYPES, _ANY_FILE, RAW_PIXELS, "multipart/form-data", "application/json")
_COUNT = "ramen.count"  # in the scope of a request: counts bytes of its body
_LARGE = 2**18  # bytes
_PARSER = ThreadPoolExecutor(1, thread_name_prefix="http-bodies")
_DIRECT = 2**20  # bytes from which on a body is not worth being received in pieces
_MARKS_PER_IMAGE = 64 + MAX_KEY  # that structure JSON; a key may have them too
_MOST_PARTS_BESIDE = 16  # of a multipart body that are no files
_MOST_PART_HEAD = 4096  # bytes


# -- heads ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImagesHead:
    """What the head of a request with images says.

    Attributes:
        kind: The type of its body.
        images: How many images it has at least, or the most that it may have if it announces more.
        nbytes: How many bytes these have, at least.
    """

    kind: str
    images: int
    nbytes: int

    @classmethod
    def of(cls, headers: Headers, most_images: int) -> "ImagesHead":
        """Read it; 415 if the body is none of ours."""
        kind = media_type(headers)
        if kind not in _TYPES:
            expected = f"Content-Type must be one of {', '.join(_TYPES)}"
            raise ApiError(415, "content_type", f"{expected}, got {kind!r}")
        nbytes = _declared(headers) if kind == RAW_PIXELS or kind in (*IMAGE_TYPES, _ANY_FILE) else 0
        count = headers.get("x-shape", "").partition(",")[0].strip() if kind == RAW_PIXELS else ""
        images = int(count) if count.isdecimal() and count.isascii() and len(count) < 10 else 1
        return cls(kind, max(1, min(images, most_images)), nbytes)


def media_type(headers: Headers) -> str:
    """The type of a body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def declared_length(headers: Headers, limit: int) -> int:
    """How long a body will be, as its head says, or 0 if it does not; 413 or 415 if that is refused.

    Args:
        headers: Of the request.
        limit: The most bytes that it may have.
    """
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "content_encoding", "bodies must not be compressed")
    length = _declared(headers)
    if length > limit:
        raise too_large(limit)
    return length


def _declared(headers: Headers) -> int:
    declared = headers.get("content-length", "")
    return int(declared[:20]) if declared.isdecimal() and declared.isascii() else 0


def too_large(limit: int) -> ApiError:
    """For a body that is longer than allowed."""
    return ApiError(413, "too_large", f"a request may have at most {limit} bytes ({readable_bytes(limit)})")


# -- limits -----------------------------------------------------------------------------------------


class LimitedBody:
    """The body of one request, which takes its place of ``receive``.

    Args:
        request: The request.
        limit: The most bytes that it may have.
        service: What routes share: the time that there is, and what all bodies may take together.
    """

    def __init__(self, request: Request, limit: int, service: Service) -> None:
        self._request, self._limit, self._budget = request, limit, service.bodies
        self._facts = facts_of(request)
        self._deadline = self._facts.started + service.settings.max_timeout_ms / 1000
        named = {"token": self._facts.caller if service.access.has_tokens else None}
        named["stream"] = self._facts.stream
        self._parties = [f"{kind} {name}" for kind, name in named.items() if name is not None]
        self._complete = False

    @contextmanager
    def admitted(self) -> Iterator[Request]:
        """The request with limits on its body, which counts until the block ends."""
        self._budget.check(declared_length(self._request.headers, self._limit), 0, self._parties)
        limited = Request(self._request.scope, self._receive)
        limited.scope[_COUNT] = self._count
        try:
            yield limited
        finally:
            self._budget.add(-self._facts.nbytes, self._parties)

    def _count(self, nbytes: int) -> None:
        """Count bytes that have come; an ApiError if they are too many."""
        if self._facts.nbytes + nbytes > self._limit:
            raise too_large(self._limit)
        self._budget.check(nbytes, self._facts.nbytes, self._parties)
        self._facts.nbytes += nbytes
        self._budget.add(nbytes, self._parties)

    async def _receive(self) -> Message:
        if self._complete or self._facts.body_is_timed:
            message = await self._request.receive()  # once complete, it says when the client goes away
        else:
            message = await self._receive_in_time()
        if not self._complete and message["type"] == "http.request":
            self._count(len(message.get("body", b"")))
            self._complete = not message.get("more_body", False)
        return message

    async def _receive_in_time(self) -> Message:
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                return await self._request.receive()
        except TimeoutError:
            raise ApiError(504, "deadline", "the body of the request did not arrive in time") from None


# -- reading ----------------------------------------------------------------------------------------


async def read_body(request: Request, deadline: float | None = None) -> bytes:
    """The whole body.

    Args:
        request: The request, with limits.
        deadline: Until when it must have arrived, on the monotonic clock.
    """
    return b"".join(await _read(request, deadline, None))


async def _read_pixels(request: Request, deadline: float, service: Service) -> bytes | Memory:
    """The same of a body that may be large and is used as it is, without a copy if that is possible."""
    with service.bodies.lending(_declared(request.headers), service.backend.memory_for) as lend:
        parts = await _read(request, deadline, lend)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _read(
    request: Request, deadline: float | None, memory_for: MemoryFor | None
) -> list[bytes | Memory]:
    facts_of(request).body_is_timed = deadline is not None  # as a whole: less work than piece by piece
    when = None if deadline is None else deadline - time.monotonic() + asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(when):
            return await _pieces(request, memory_for)
    except TimeoutError:
        raise ApiError(504, "deadline", "the body of the request did not arrive in time") from None
    except ClientDisconnect:
        raise client_gone() from None


async def _pieces(request: Request, memory_for: MemoryFor | None) -> list[bytes | Memory]:
    pieces: list[bytes | Memory] = []
    length = _declared(request.headers)
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces
        if memory_for is not None and length >= _DIRECT and len(pieces) == 1:
            whole = await rest_of_body(request, piece, length, memory_for, request.scope[_COUNT])
            if whole is not None:
                return [whole]


async def parsed(nbytes: int, parse: Callable[[], T]) -> T:
    """What a body holds; a large one is parsed in a thread, so that others need not wait for it.

    There is one such thread: parsers keep the interpreter to themselves, and several of them would take turns
    with the event loop.

    Args:
        nbytes: How large it is.
        parse: Does it.
    """
    if nbytes <= _LARGE:
        return parse()
    return await asyncio.get_running_loop().run_in_executor(_PARSER, parse)


# -- images -----------------------------------------------------------------------------------------


async def read_images(
    request: Request, head: ImagesHead, deadline: float, service: Service
) -> list[SentImage]:
    """The images of a request, each with its key.

    Args:
        request: The request, with limits.
        head: What its head says.
        deadline: Until when its body must have arrived, on the monotonic clock.
        service: What endpoints share.
    """
    most = service.backend.model.max_batch
    if head.kind == RAW_PIXELS:  # nothing to parse
        pixels = await _read_pixels(request, deadline, service)
        return _from_pixels(request.headers.get("x-shape", ""), pixels, most)
    body = await read_body(request, deadline)
    if head.kind == "multipart/form-data":
        boundary = request.headers["content-type"]
        return await parsed(len(body), lambda: _from_multipart(boundary, body, most))
    if head.kind == "application/json":
        return await parsed(len(body), lambda: _from_json(body, most))
    if not body:
        raise ApiError(422, "no_images", "the body is empty")
    return [SentImage("image 0", body)]


def check_count(count: int, most: int) -> None:
    """422 unless a request has at least one image and not too many."""
    if count < 1:
        raise ApiError(422, "no_images", "the request has no images")
    if count > most:
        raise ApiError(422, "too_many_images", f"a request may have at most {most} images, got {count}")


# -- JSON -------------------------------------------------------------------------------------------


def _from_json(body: bytes, most: int) -> list[SentImage]:
    # A parser makes an object of two bytes, so it is not given more of them than images need.
    needed = most * _MARKS_PER_IMAGE
    if body.count(b",") + body.count(b"{") > needed:
        raise ApiError(422, "too_many_images", f"a request may have at most {most} images, and nothing else")
    if body.count(b"[") > needed:
        raise ApiError(400, "bad_request", "the body has too many lists: one is expected")
    try:
        sent = ImagesJson.model_validate_json(body)
    except ValidationError as error:
        raise from_pydantic(error) from None
    check_count(len(sent.images), most)
    return [
        SentImage(image.key or f"image {number}", decoded_base64(image.data, f"images.{number}.data"))
        for number, image in enumerate(sent.images)
    ]


def decoded_base64(text: str, name: str) -> bytes:
    """The bytes that a text stands for; 422 if it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(422, "invalid", f"{name}: must be base64") from None


# -- pixels -----------------------------------------------------------------------------------------


def _from_pixels(shape: str, body: bytes | Memory, most: int) -> list[SentImage]:
    parts = shape.split(",")
    if len(parts) != 4 or not all(part.strip().isdecimal() and len(part) < 10 for part in parts):
        raise ApiError(422, "invalid", f"X-Shape must be n,height,width,3, got {shape[:40]!r}")
    sizes = [int(part) for part in parts]
    pixels = pixel_array(body, sizes, "X-Shape")
    check_count(len(pixels), most)
    return [SentImage(f"image {number}", image) for number, image in enumerate(pixels)]


def pixel_array(data: bytes | Memory, shape: Sequence[int], name: str) -> np.ndarray[Any, Any]:
    """Pixels ``(n, h, w, 3)`` without a copy; 422 if the bytes are not as many as the shape needs."""
    if len(shape) != 4 or min(shape) < 1 or shape[3] != 3:
        raise ApiError(422, "invalid", f"{name} must be [n, height, width, 3], got {list(shape)}")
    needed = shape[0] * shape[1] * shape[2] * shape[3]
    if needed != len(data):
        raise ApiError(
            422, "invalid", f"{name}: {list(shape)} needs {needed} bytes of pixels, got {len(data)}"
        )
    return np.frombuffer(data, np.uint8).reshape(tuple(shape))


# -- multipart --------------------------------------------------------------------------------------


def _from_multipart(content_type: str, body: bytes, most: int) -> list[SentImage]:
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise ApiError(400, "bad_request", "Content-Type multipart/form-data needs a boundary")
    images: list[SentImage] = []
    others = 0
    for disposition, start, end in _parts(body, boundary):
        if disposition.get(b"name") != b"files":
            others += 1
            if others > _MOST_PARTS_BESIDE:
                raise ApiError(422, "invalid", "the body has too many parts that are not called 'files'")
            continue
        check_count(len(images) + 1, most)
        name = disposition.get(b"filename", b"").decode("utf-8", "replace")[:MAX_KEY]
        images.append(SentImage(name or f"image {len(images)}", body[start:end]))
    if not images:
        raise ApiError(422, "no_images", "the request has no images: they are the parts called 'files'")
    return images


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[dict[bytes, bytes], int, int]]:
    """What each part says of itself, and where its content begins and ends."""
    delimiter = b"\r\n--" + boundary
    at = len(delimiter) - 2
    if not body.startswith(delimiter[2:]):
        raise _malformed("it does not begin with the boundary")
    while not body.startswith(b"--", at):
        head_end = body.find(b"\r\n\r\n", at, at + _MOST_PART_HEAD)
        if not body.startswith(b"\r\n", at) or head_end < 0:
            raise _malformed("a part has no headers, or too many")
        end = body.find(delimiter, head_end + 4)
        if end < 0:
            raise _malformed("it ends too early")
        yield _disposition(body[at:head_end]), head_end + 4, end
        at = end + len(delimiter)


def _disposition(head: bytes) -> dict[bytes, bytes]:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            return parse_options_header(value.strip())[1]
    return {}


def _malformed(why: str) -> ApiError:
    return ApiError(400, "bad_request", f"the body is not valid multipart/form-data: {why}")
