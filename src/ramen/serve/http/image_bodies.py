"""The images in the body of a request: a file, several as multipart or base64, or plain pixels."""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import numpy as np
import python_multipart as multipart
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers

from ramen.serve.engine.answers import SentImage
from ramen.serve.http.direct_bodies import Memory
from ramen.serve.http.errors import ApiError, in_words
from ramen.serve.http.schemas import MAX_KEY, ImagesJson

RAW_PIXELS = "application/x-ramen-uint8"
_ANY_FILE = "application/octet-stream"
IMAGE_TYPES = tuple(f"image/{kind}" for kind in ("jpeg", "png", "webp", "bmp", "gif", "tiff"))
_MOST_PARTS_BESIDE = 16  # of a multipart body that are no files


def check_content_type(headers: Headers) -> str:
    """The type of a body with images, without its parameters; 415 if it is none of ours."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    known = (*IMAGE_TYPES, _ANY_FILE, RAW_PIXELS, "multipart/form-data", "application/json")
    if kind not in known:
        raise ApiError(415, "content_type", f"Content-Type must be one of {', '.join(known)}, got {kind!r}")
    return kind


def is_one_file(kind: str) -> bool:
    """Whether a body of this type is one image file."""
    return kind in IMAGE_TYPES or kind == _ANY_FILE


def images_in(headers: Headers, body: bytes | Memory, most: int) -> list[SentImage]:
    """The images of a request, each with its key.

    Args:
        headers: Of the request; its content type says how to read the body.
        body: All of it.
        most: How many images there may be.
    """
    kind = check_content_type(headers)
    if kind == RAW_PIXELS:
        return _from_pixels(headers.get("x-shape", ""), body, most)
    body = bytes(body)
    if kind == "multipart/form-data":
        return _from_multipart(headers["content-type"], body, most)
    if kind == "application/json":
        return _from_json(body, most)
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
    try:
        sent = ImagesJson.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        if any(one["type"] == "json_invalid" for one in found):
            raise ApiError(400, "bad_request", "the body is not valid JSON") from None
        raise ApiError(422, "invalid", in_words(found)) from None
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


class _Parts:
    """Collects the parts of a multipart body that are called ``files``."""

    def __init__(self, most: int) -> None:
        self.images: list[SentImage] = []
        self._most, self._others = most, 0
        self._header = [b"", b""]
        self._headers: dict[bytes, bytes] = {}
        self._data: list[bytes] = []
        self.ended = False

    def on_part_begin(self) -> None:
        self._headers, self._data, self._header = {}, [], [b"", b""]

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def on_header_end(self) -> None:
        self._headers[self._header[0].lower()] = self._header[1]
        self._header = [b"", b""]

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._data.append(data[start:end])

    def on_part_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if options.get(b"name") != b"files":
            self._others += 1
            if self._others > _MOST_PARTS_BESIDE:
                raise ApiError(422, "invalid", "the body has too many parts that are not called 'files'")
            return
        check_count(len(self.images) + 1, self._most)
        name = options.get(b"filename", b"").decode("utf-8", "replace")[:MAX_KEY]
        self.images.append(SentImage(name or f"image {len(self.images)}", b"".join(self._data)))

    def on_end(self) -> None:
        self.ended = True


def _from_multipart(content_type: str, body: bytes, most: int) -> list[SentImage]:
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise ApiError(400, "bad_request", "Content-Type multipart/form-data needs a boundary")
    parts = _Parts(most)
    names = ("part_begin", "header_field", "header_value", "header_end", "part_data", "part_end", "end")
    callbacks: Any = {f"on_{name}": getattr(parts, f"on_{name}") for name in names}
    try:
        parser = multipart.MultipartParser(boundary, callbacks)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise ApiError(400, "bad_request", f"the body is not valid multipart/form-data: {error}") from None
    if not parts.ended:
        raise ApiError(400, "bad_request", "the body is not valid multipart/form-data: it ends too early")
    if not parts.images:
        raise ApiError(422, "no_images", "the request has no images: they are the parts called 'files'")
    return parts.images
