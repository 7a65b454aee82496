"""Tensors of the Open Inference Protocol (KServe v2), as JSON and as binary data behind the JSON.

The binary form is that of the "binary tensor data extension": the header ``Inference-Header-Content-Length``
says how long the JSON is, and each tensor's ``binary_data_size`` how many of the bytes behind it are its own.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ramen.serve.engine.answers import SentImage, StreamAnswer
from ramen.serve.http.errors import ApiError, in_words
from ramen.serve.http.image_bodies import check_count, decoded_base64, pixel_array

HEADER_LENGTH = "Inference-Header-Content-Length"
PIXELS, FILES = "images", "bytes"
_MAX_SIZE = 2**40  # of a dimension; far more than any body has bytes


class _Tensor(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str = Field(max_length=256)
    parameters: dict[str, Any] | None = None


class OipInputJson(_Tensor):
    """A tensor that is sent: `images` with pixels, or `bytes` with files."""

    shape: list[int] = Field(min_length=1, max_length=8, examples=[[1]])
    datatype: str = Field(examples=["BYTES"])
    data: list[Any] | None = Field(
        None, description="Flat or nested. Files are in base64 here. Absent if the data are binary."
    )


class OipOutputJson(_Tensor):
    """A tensor that is asked for."""


class OipRequestJson(BaseModel):
    """A request; `parameters.stream` names the stream, `parameters.timeout` is in microseconds."""

    model_config = ConfigDict(extra="allow")

    id: str | None = Field(None, max_length=256)
    parameters: dict[str, Any] | None = None
    inputs: list[OipInputJson] = Field(min_length=1)
    outputs: list[OipOutputJson] | None = None


class OipTensorJson(BaseModel):
    """A tensor that is answered."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class OipResponseJson(BaseModel):
    """One row per image in every output."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[OipTensorJson]


@dataclass(frozen=True)
class InferRequest:
    """What is asked for.

    Attributes:
        id: The client's, returned to it.
        stream: The stream.
        timeout_ms: Until when an answer is of use; None if the request does not say.
        images: What to classify.
        outputs: The outputs that are wanted, each with whether as binary data; None for all.
        binary: Whether outputs that do not say are to be binary data.
    """

    id: str | None
    stream: str
    timeout_ms: int | None
    images: list[SentImage]
    outputs: dict[str, bool] | None
    binary: bool


# -- requests ---------------------------------------------------------------------------------------


def parse_request(body: bytes, header_length: str | None, most: int, max_json: int) -> InferRequest:
    """A request; an ApiError that says what is wrong with it.

    Args:
        body: All of it.
        header_length: How many of its bytes are JSON; None for all.
        most: How many images there may be.
        max_json: How many bytes of JSON there may be.
    """
    view = memoryview(body)
    if header_length is None:
        split = len(body)
    else:
        if not (header_length.isascii() and header_length.isdecimal() and len(header_length) < 20):
            raise ApiError(400, "bad_request", f"{HEADER_LENGTH} must be a number of bytes")
        split = int(header_length)
        if split > len(body):
            raise ApiError(400, "bad_request", f"{HEADER_LENGTH} is {split}, but the body has {len(body)}")
    if split > max_json:
        raise ApiError(
            413,
            "too_large",
            f"the JSON may have at most {max_json} bytes, got {split}: send binary tensor data",
        )
    sent = _validated(body[:split])
    images = _images(sent.inputs, view[split:], most)
    parameters = sent.parameters or {}
    binary = _flag(parameters, "binary_data_output")
    outputs = None
    if sent.outputs:
        outputs = {one.name: _flag(one.parameters or {}, "binary_data", binary) for one in sent.outputs}
    return InferRequest(sent.id, _stream(parameters), _timeout_ms(parameters), images, outputs, binary)


def _validated(text: bytes) -> OipRequestJson:
    try:
        return OipRequestJson.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        if any(one["type"] == "json_invalid" for one in found):
            raise ApiError(400, "bad_request", "the body is not valid JSON") from None
        raise ApiError(422, "invalid", in_words(found)) from None


def _stream(parameters: Mapping[str, Any]) -> str:
    stream = parameters.get("stream", "default")
    if not isinstance(stream, str):
        raise ApiError(422, "invalid", "parameters.stream: must be the name of a stream")
    return stream


def _timeout_ms(parameters: Mapping[str, Any]) -> int | None:
    timeout = parameters.get("timeout")
    if timeout is None or timeout == 0:  # Triton's clients mean "none" by 0
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0:
        raise ApiError(422, "invalid", "parameters.timeout: must be a number of microseconds")
    return max(1, timeout // 1000)


def _flag(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise ApiError(422, "invalid", f"parameters.{name}: must be true or false")
    return value


def _images(inputs: Sequence[OipInputJson], binary: memoryview, most: int) -> list[SentImage]:
    if len(inputs) != 1 or inputs[0].name not in (PIXELS, FILES):
        raise ApiError(422, "invalid", f"inputs: expected one input, either {PIXELS!r} or {FILES!r}")
    tensor = inputs[0]
    if any(not 0 <= size < _MAX_SIZE for size in tensor.shape):
        raise ApiError(422, "invalid", "inputs.0.shape: sizes must not be negative")
    parameters = tensor.parameters or {}
    if any(name.startswith("shared_memory") for name in parameters):
        raise ApiError(422, "invalid", "inputs.0.parameters: shared memory is not supported")
    data: memoryview | None = None
    size = parameters.get("binary_data_size")
    if size is not None:
        if isinstance(size, bool) or not isinstance(size, int) or size != len(binary):
            raise ApiError(
                422, "invalid", f"inputs.0.parameters.binary_data_size: {len(binary)} bytes follow the JSON"
            )
        data = binary
    check_count(tensor.shape[0], most)
    if tensor.name == PIXELS:
        return _from_pixels(tensor, data)
    return _from_files(tensor, data)


def _from_pixels(tensor: OipInputJson, binary: memoryview | None) -> list[SentImage]:
    _check_datatype(tensor, "UINT8")
    if binary is None:
        numbers = _numbers(_flat(tensor.data))
        binary = memoryview(numbers.tobytes())
    array = pixel_array(binary, tensor.shape, "inputs.0.shape")
    return [SentImage(f"image {number}", image) for number, image in enumerate(array)]


def _numbers(values: list[Any]) -> NDArray[np.uint8]:
    if any(type(value) is not int or not 0 <= value <= 255 for value in values):
        raise ApiError(422, "invalid", "inputs.0.data: must be whole numbers from 0 to 255")
    return np.array(values, np.uint8)


def _from_files(tensor: OipInputJson, binary: memoryview | None) -> list[SentImage]:
    _check_datatype(tensor, "BYTES")
    if len(tensor.shape) > 2 or tensor.shape[1:] not in ([], [1]):
        raise ApiError(422, "invalid", f"inputs.0.shape: {FILES} must be [n], got {tensor.shape}")
    if binary is None:
        texts = _flat(tensor.data)
        if not all(isinstance(text, str) for text in texts):
            raise ApiError(422, "invalid", "inputs.0.data: must be text in base64")
        files = [decoded_base64(text, f"inputs.0.data.{number}") for number, text in enumerate(texts)]
    else:
        files = _elements(binary)
    if len(files) != tensor.shape[0]:
        raise ApiError(422, "invalid", f"inputs.0: shape {tensor.shape}, but {len(files)} elements")
    return [SentImage(f"image {number}", file) for number, file in enumerate(files)]


def _check_datatype(tensor: OipInputJson, expected: str) -> None:
    if tensor.datatype != expected:
        raise ApiError(422, "invalid", f"inputs.0.datatype: {tensor.name} must be {expected}")


def _flat(data: list[Any] | None) -> list[Any]:
    """Nested lists as one; they are as deep as the sender likes."""
    if data is None:
        raise ApiError(422, "invalid", "inputs.0.data: missing, and no binary data either")
    while any(isinstance(one, list) for one in data):
        if not all(isinstance(one, list) for one in data):
            raise ApiError(422, "invalid", "inputs.0.data: lists and values are mixed")
        data = [value for one in data for value in one]
    return data


def _elements(data: memoryview) -> list[bytes]:
    """Elements of BYTES: each has its length before it, in four bytes."""
    found, at = [], 0
    while at < len(data):
        if at + 4 > len(data):
            raise ApiError(422, "invalid", "inputs.0: the binary data end within a length")
        (length,) = struct.unpack_from("<I", data, at)
        at += 4
        if at + length > len(data):
            raise ApiError(422, "invalid", "inputs.0: the binary data end within an element")
        found.append(bytes(data[at : at + length]))
        at += length
    return found


# -- answers ----------------------------------------------------------------------------------------


def output_tensors(answers: Sequence[StreamAnswer]) -> dict[str, tuple[str, NDArray[Any]]]:
    """Datatype and values of all outputs by name; at least one image must have an answer."""
    results = [answer.result for answer in answers]
    known = next(answer.probabilities for answer in answers if answer.probabilities is not None)
    rows = [np.zeros_like(known) if a.probabilities is None else a.probabilities for a in answers]

    def texts(values: Sequence[str | None]) -> tuple[str, NDArray[Any]]:
        return "BYTES", np.array([value or "" for value in values], object)

    return {
        "labels": texts([result.label for result in results]),
        "probabilities": ("FP32", np.nan_to_num(np.stack(rows).astype(np.float32))),
        "zero_shot_labels": texts([result.zero_shot_label for result in results]),
        "adapted": ("BOOL", np.array([result.adapted for result in results], bool)),
        "changed": ("BOOL", np.array([result.changed for result in results], bool)),
        "support": (
            "INT64",
            np.array([-1 if r.support is None else r.support for r in results], np.int64),
        ),
        "state_version": ("INT64", np.array([result.state_version for result in results], np.int64)),
        "queued_ms": ("FP32", np.nan_to_num(np.array([a.queued_ms for a in answers], np.float32))),
        "computed_ms": ("FP32", np.nan_to_num(np.array([a.computed_ms for a in answers], np.float32))),
        "ids": texts([answer.id for answer in answers]),
        "errors": texts([result.error for result in results]),
    }


OUTPUTS = {  # with the datatype and the sizes behind the number of images; -1 for the number of classes
    "labels": ("BYTES", []),
    "probabilities": ("FP32", [-1]),
    "zero_shot_labels": ("BYTES", []),
    "adapted": ("BOOL", []),
    "changed": ("BOOL", []),
    "support": ("INT64", []),
    "state_version": ("INT64", []),
    "queued_ms": ("FP32", []),
    "computed_ms": ("FP32", []),
    "ids": ("BYTES", []),
    "errors": ("BYTES", []),
}


def check_outputs(asked: InferRequest) -> None:
    """422 for outputs that there are not."""
    for name in asked.outputs or ():
        if name not in OUTPUTS:
            raise ApiError(
                422, "invalid", f"outputs: there is no {name[:40]!r}; there are {', '.join(OUTPUTS)}"
            )


def render(
    asked: InferRequest, answers: Sequence[StreamAnswer], model_name: str, version: str
) -> tuple[bytes, int | None]:
    """The body of a response, and how many of its bytes are JSON; None if all.

    Args:
        asked: The request.
        answers: One per image.
        model_name: As the client calls the model.
        version: Of the model.
    """
    tensors = output_tensors(answers)
    wanted = asked.outputs or dict.fromkeys(tensors, asked.binary)
    outputs, parts = [], []
    for name, binary in wanted.items():
        datatype, values = tensors[name]
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(values.shape)}
        if binary:
            data = _as_bytes(values)
            parts.append(data)
            output["parameters"] = {"binary_data_size": len(data)}
        else:
            output["data"] = values.ravel().tolist()
        outputs.append(output)
    response: dict[str, Any] = {"model_name": model_name, "model_version": version, "outputs": outputs}
    if asked.id is not None:
        response["id"] = asked.id
    text = json.dumps(response).encode()
    return text + b"".join(parts), len(text) if parts else None


def _as_bytes(values: NDArray[Any]) -> bytes:
    if values.dtype != object:
        return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    encoded = [str(value).encode() for value in values]
    return b"".join(struct.pack("<I", len(one)) + one for one in encoded)
