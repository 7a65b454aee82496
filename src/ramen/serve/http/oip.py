"""The Open Inference Protocol (KServe v2 over REST), for clients that exist already.

Tensors are JSON, or binary data behind the JSON, as in the "binary tensor data extension": the header
``Inference-Header-Content-Length`` says how long the JSON is, and each tensor's ``binary_data_size`` how many
of the bytes behind it are its own.
"""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ramen import __version__
from ramen.client.operations import Classify, IsReady, SentImage, StreamAnswer
from ramen.serve.http.bodies import check_count, decoded_base64, media_type, parsed, pixel_array, read_body
from ramen.serve.http.endpoints import errors, needs, open_to_all
from ramen.serve.http.errors import ApiError, from_pydantic
from ramen.serve.http.schemas import OipErrorJson
from ramen.serve.http.service import Service, facts_of, remaining, unless_gone

HEADER_LENGTH = "Inference-Header-Content-Length"
PIXELS, FILES = "images", "bytes"
VERSION = "1"
_MOST_TENSORS = 64
_MAX_SIZE = 2**40  # of a dimension; far more than any body has bytes
_TAGS: list[str | Enum] = ["open inference protocol"]
_TYPES = ("", "application/json", "application/octet-stream")
_BINARY = {"schema": {"type": "string", "format": "binary"}}

# -- what is sent and answered ----------------------------------------------------------------------


class _Tensor(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str = Field(max_length=256)
    parameters: dict[str, Any] | None = None


class OipInputJson(_Tensor):
    """A tensor that is sent: `images` with pixels, or `bytes` with files."""

    shape: list[int] = Field(fail_fast=True, min_length=1, max_length=8, examples=[[1]])
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
    inputs: list[OipInputJson] = Field(fail_fast=True, min_length=1, max_length=_MOST_TENSORS)
    outputs: list[OipOutputJson] | None = Field(None, fail_fast=True, max_length=_MOST_TENSORS)


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


class OipServerJson(BaseModel):
    """The server."""

    name: str
    version: str
    extensions: list[str]


class OipLiveJson(BaseModel):
    """Whether the server lives."""

    live: bool


class OipReadyJson(BaseModel):
    """Whether images can be answered."""

    name: str | None = None
    ready: bool


class OipTensorInfoJson(BaseModel):
    """A tensor that a model takes or gives; -1 for any size."""

    name: str
    datatype: str
    shape: list[int]


class OipModelJson(BaseModel):
    """A model. Requests have one of the inputs; `parameters.names` lists all names of the model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[OipTensorInfoJson]
    outputs: list[OipTensorInfoJson]
    parameters: dict[str, Any]


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
    try:
        sent = OipRequestJson.model_validate_json(body[:split])
    except ValidationError as error:
        raise from_pydantic(error) from None
    images = _images(sent.inputs, view[split:], most)
    parameters = sent.parameters or {}
    binary = _flag(parameters, "binary_data_output")
    outputs = None
    if sent.outputs:
        outputs = {one.name: _flag(one.parameters or {}, "binary_data", binary) for one in sent.outputs}
    return InferRequest(sent.id, _stream(parameters), _timeout_ms(parameters), images, outputs, binary)


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


def _texts(values: Sequence[str | None]) -> NDArray[Any]:
    return np.array([value or "" for value in values], object)


def _floats(values: Sequence[float]) -> NDArray[np.float32]:
    return np.nan_to_num(np.array(values, np.float32))


def output_tensors(answers: Sequence[StreamAnswer]) -> dict[str, NDArray[Any]]:
    """Values of all ``OUTPUTS`` by name; at least one image must have an answer."""
    results = [answer.result for answer in answers]
    known = next(answer.probabilities for answer in answers if answer.probabilities is not None)
    rows = [np.zeros_like(known) if a.probabilities is None else a.probabilities for a in answers]
    return {
        "labels": _texts([r.label for r in results]),
        "probabilities": np.nan_to_num(np.stack(rows).astype(np.float32)),
        "zero_shot_labels": _texts([r.zero_shot_label for r in results]),
        "adapted": np.array([r.adapted for r in results], bool),
        "changed": np.array([r.changed for r in results], bool),
        "support": np.array([-1 if r.support is None else r.support for r in results], np.int64),
        "state_version": np.array([r.state_version for r in results], np.int64),
        "queued_ms": _floats([a.queued_ms for a in answers]),
        "computed_ms": _floats([a.computed_ms for a in answers]),
        "ids": _texts([a.id for a in answers]),
        "errors": _texts([r.error for r in results]),
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
        values = tensors[name]
        output: dict[str, Any] = {"name": name, "datatype": OUTPUTS[name][0], "shape": list(values.shape)}
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


# -- endpoints --------------------------------------------------------------------------------------


def slug(name: str) -> str:
    """A model's name as one part of a path.

    >>> slug("ViT-B-16/openai")
    'ViT-B-16-openai'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"


def add_inference_protocol(app: FastAPI, service: Service) -> None:
    """Add the routes to an application."""
    routes = _Routes(service)

    def add(path: str, endpoint: Any, model: Any, *statuses: int, **options: Any) -> None:
        documented = errors(*statuses, model=OipErrorJson)
        if model is OipReadyJson:
            documented[503] = {"model": OipReadyJson, "description": "Not ready."}
        elif model is OipResponseJson:
            documented[200] = {"content": {"application/octet-stream": _BINARY}}
        app.add_api_route(path, endpoint, response_model=model, responses=documented, tags=_TAGS, **options)

    add("/v2", routes.server, OipServerJson)
    add("/v2/health/live", routes.live, OipLiveJson)
    add("/v2/health/ready", routes.ready, OipReadyJson)
    for name in ("{model}", *routes.plain_names):
        for path in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{{version}}"):
            listed = [_part(part) for part in ("model", "version") if f"{{{part}}}" in path]
            shown = {"include_in_schema": name == "{model}", "openapi_extra": {"parameters": listed}}
            infer = {"parameters": [*listed, _HEADER], "requestBody": _REQUEST_BODY}
            add(path, routes.model, OipModelJson, 404, **shown)
            add(f"{path}/ready", routes.model_ready, OipReadyJson, 404, **shown)
            add(
                f"{path}/infer",
                routes.infer,
                OipResponseJson,
                404,
                409,
                methods=["POST"],
                **shown | {"openapi_extra": infer},
            )


def _part(name: str) -> dict[str, Any]:
    """A part of a path, for the API's description."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


_HEADER = {
    "name": HEADER_LENGTH,
    "in": "header",
    "description": "How many bytes of the body are JSON, if binary tensor data follow it.",
    "schema": {"type": "integer", "minimum": 0},
}
_REQUEST_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"$ref": f"#/components/schemas/{OipRequestJson.__name__}"},
            "example": {
                "parameters": {"stream": "camera-1"},
                "inputs": [{"name": FILES, "shape": [1], "datatype": "BYTES", "data": ["iVBORw0KGgo="]}],
                "outputs": [{"name": "labels"}],
            },
        },
        "application/octet-stream": _BINARY,
    },
}


class _Routes:
    """The endpoints; each takes the name under which the model was asked for."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._model = service.backend.model
        self._names = list(dict.fromkeys((self._model.name, slug(self._model.name))))
        # A name with slashes is several parts of a path: it gets routes of its own.
        self.plain_names = [name for name in self._names if "/" in name and not re.search(r"[{}?#]", name)]

    def _check_name(self, request: Request) -> str:
        name = request.path_params.get("model", self._model.name)
        version = request.path_params.get("version", VERSION)
        if name not in self._names:
            raise ApiError(
                404, "unknown_model", f"there is no model of this name; there is {self._names[-1]}"
            )
        if version != VERSION:
            raise ApiError(404, "unknown_model", f"there is no such version; there is {VERSION}")
        return str(name)

    @needs()
    async def server(self) -> OipServerJson:
        """What serves."""
        return OipServerJson(name="ramen", version=__version__, extensions=["binary_tensor_data"])

    @open_to_all
    async def live(self) -> OipLiveJson:
        """Whether the process is alive."""
        return OipLiveJson(live=True)

    @open_to_all
    async def ready(self) -> Response:
        """Whether images can be answered now."""
        return await self._ready(None)

    @needs()
    async def model(self, request: Request) -> OipModelJson:
        """What the model takes and gives."""
        self._check_name(request)
        model = self._model
        classes = -1 if model.can_set_classes else len(model.classes)
        outputs = [
            OipTensorInfoJson(name=name, datatype=kind, shape=[-1, *([classes] if sizes else [])])
            for name, (kind, sizes) in OUTPUTS.items()
        ]
        return OipModelJson(
            name=model.name,
            versions=[VERSION],
            platform="ramen_pytorch",
            inputs=[
                OipTensorInfoJson(name=PIXELS, datatype="UINT8", shape=[-1, -1, -1, 3]),
                OipTensorInfoJson(name=FILES, datatype="BYTES", shape=[-1]),
            ],
            outputs=outputs,
            parameters={"names": self._names, "method": model.method, "max_batch": model.max_batch},
        )

    @needs()
    async def model_ready(self, request: Request) -> Response:
        """Whether the model can answer now."""
        self._check_name(request)
        return await self._ready(self._model.name)

    async def _ready(self, name: str | None) -> Response:
        is_ready = not self._service.stopping.is_set() and await self._service.backend.call(IsReady())
        content = ({} if name is None else {"name": name}) | {"ready": is_ready}
        return JSONResponse(content, 200 if is_ready else 503)

    @needs("classify")
    async def infer(self, request: Request) -> Response:
        """Classify images in the stream that `parameters.stream` names; `default` if it names none.

        `parameters.timeout` is in microseconds, as Triton's clients send it. Files in JSON are base64.
        """
        name, service, facts = self._check_name(request), self._service, facts_of(request)
        if media_type(request.headers) not in _TYPES:
            raise ApiError(415, "content_type", f"Content-Type must be one of {', '.join(_TYPES[1:])}")
        await service.check_ready()
        limit = service.deadline(request, None)
        body = await read_body(request, limit)
        length = request.headers.get(HEADER_LENGTH)
        asked = await parsed(
            len(body),
            lambda: parse_request(body, length, self._model.max_batch, service.settings.max_json_bytes),
        )
        check_outputs(asked)
        facts.images = len(asked.images)
        service.check_stream(request, request.state.caller, asked.stream)
        answers = await self._answers(request, asked)
        text, json_length = render(asked, answers, name, VERSION)
        if json_length is None:
            return Response(text, media_type="application/json")
        headers = {HEADER_LENGTH: str(json_length)}
        return Response(text, headers=headers, media_type="application/octet-stream")

    async def _answers(self, request: Request, asked: InferRequest) -> Sequence[StreamAnswer]:
        service = self._service
        longest = service.settings.max_timeout_ms
        if asked.timeout_ms is not None and asked.timeout_ms > longest:
            raise ApiError(
                422, "invalid", f"parameters.timeout: must be at most {longest * 1000} microseconds"
            )
        deadline = service.deadline(request, asked.timeout_ms)
        work = service.backend.call(Classify(asked.stream, asked.images, remaining(deadline)))
        answers = await unless_gone(request, work)
        if all(answer.result.error is not None for answer in answers):
            raise ApiError(422, "undecodable", answers[0].result.error or "")
        return answers
