"""The Open Inference Protocol (KServe v2 over REST), for clients that exist already.

Tensors are JSON, or binary data behind the JSON, as in the "binary tensor data extension": the header
``Inference-Header-Content-Length`` says how long the JSON is, and each tensor's ``binary_data_size`` how many
of the bytes behind it are its own.
"""

import json
import re
import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Literal

import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError
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
VERSION = "1"
_MOST_TENSORS = 64
_MAX_SIZE = 2**40  # of a dimension; far more than any body has bytes
_TAGS: list[str | Enum] = ["open inference protocol"]
_TYPES = ("", "application/json", "application/octet-stream")
_BINARY = {"schema": {"type": "string", "format": "binary"}}

# -- what is sent and answered ----------------------------------------------------------------------


class _Open(BaseModel):
    """The protocol lets everybody add what others do not know."""

    model_config = ConfigDict(extra="allow")


class OipInputParametersJson(_Open):
    """How the data of a tensor are sent."""

    binary_data_size: StrictInt | None = None


class OipInputJson(_Open):
    """A tensor that is sent: `images` with pixels, or `bytes` with files."""

    name: Literal["images", "bytes"]
    datatype: str = Field(examples=["BYTES"])
    shape: list[int] = Field(fail_fast=True, min_length=1, max_length=8, examples=[[1]])
    parameters: OipInputParametersJson | None = None
    data: list[Any] | None = Field(
        None, description="Flat or nested. Files are in base64 here. Absent if the data are binary."
    )


class OipOutputParametersJson(_Open):
    """How the data of an output are to be sent."""

    binary_data: StrictBool | None = None


class OipOutputJson(_Open):
    """A tensor that is asked for."""

    name: str = Field(max_length=256)
    parameters: OipOutputParametersJson | None = None


class OipParametersJson(_Open):
    """Where the images belong to, and until when an answer is of use."""

    stream: StrictStr = "default"
    timeout: StrictInt | None = Field(default=None, ge=0, description="Microseconds; 0 for none.")
    binary_data_output: StrictBool = False


class OipRequestJson(_Open):
    """A request, with one tensor."""

    id: str | None = Field(None, max_length=256)
    parameters: OipParametersJson | None = None
    inputs: list[OipInputJson] = Field(fail_fast=True, min_length=1, max_length=1)
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


# -- requests ---------------------------------------------------------------------------------------


def parse_request(
    body: bytes, header_length: str | None, most: int, max_json: int
) -> tuple[OipRequestJson, list[SentImage]]:
    """A request and its images; an ApiError that says what is wrong with it.

    Args:
        body: All of it.
        header_length: How many of its bytes are JSON; None for all.
        most: How many images there may be.
        max_json: How many bytes of JSON there may be.
    """
    split = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdecimal() and len(header_length) < 20):
            raise ApiError(400, "bad_request", f"{HEADER_LENGTH} must be a number of bytes")
        split = int(header_length)
        if split > len(body):
            raise ApiError(400, "bad_request", f"{HEADER_LENGTH} is {split}, but the body has {len(body)}")
    if split > max_json:
        message = f"the JSON may have at most {max_json} bytes, got {split}: send binary tensor data"
        raise ApiError(413, "too_large", message)
    try:
        sent = OipRequestJson.model_validate_json(body[:split])
    except ValidationError as error:
        raise from_pydantic(error) from None
    for output in sent.outputs or ():
        if output.name not in OUTPUTS:
            raise _invalid("outputs", f"there is no {output.name[:40]!r}; there are {', '.join(OUTPUTS)}")
    return sent, _images(sent.inputs[0], memoryview(body)[split:], most)


def _invalid(where: str, what: str) -> ApiError:
    return ApiError(422, "invalid", f"{where}: {what}")


def _images(tensor: OipInputJson, binary: memoryview, most: int) -> list[SentImage]:
    if any(not 0 <= size < _MAX_SIZE for size in tensor.shape):
        raise _invalid("inputs.0.shape", "sizes must not be negative")
    check_count(tensor.shape[0], most)
    parameters = tensor.parameters or OipInputParametersJson()
    if any(name.startswith("shared_memory") for name in parameters.model_extra or ()):
        raise _invalid("inputs.0.parameters", "shared memory is not supported")
    size = parameters.binary_data_size
    if size not in (None, len(binary)):
        raise _invalid("inputs.0.parameters.binary_data_size", f"{len(binary)} bytes follow the JSON")
    expected, images_in = _INPUTS[tensor.name]
    if tensor.datatype != expected:
        raise _invalid("inputs.0.datatype", f"{tensor.name} must be {expected}")
    found = images_in(tensor, None if size is None else binary)
    return [SentImage(f"image {number}", image) for number, image in enumerate(found)]


def _pixels(tensor: OipInputJson, binary: memoryview | None) -> NDArray[np.uint8]:
    if binary is None:
        values = _flat(tensor.data)
        if any(type(value) is not int or not 0 <= value <= 255 for value in values):
            raise _invalid("inputs.0.data", "must be whole numbers from 0 to 255")
        binary = memoryview(bytes(values))
    return pixel_array(binary, tensor.shape, "inputs.0.shape")


def _files(tensor: OipInputJson, binary: memoryview | None) -> list[bytes]:
    if tensor.shape[1:] not in ([], [1]):
        raise _invalid("inputs.0.shape", f"must be [n], got {tensor.shape}")
    if binary is None:
        texts = _flat(tensor.data)
        if not all(isinstance(text, str) for text in texts):
            raise _invalid("inputs.0.data", "must be text in base64")
        files = [decoded_base64(text, f"inputs.0.data.{number}") for number, text in enumerate(texts)]
    else:
        files = _elements(binary)
    if len(files) != tensor.shape[0]:
        raise _invalid("inputs.0", f"shape {tensor.shape}, but {len(files)} elements")
    return files


_INPUTS: dict[str, tuple[str, Callable[[OipInputJson, memoryview | None], Any]]] = {
    "images": ("UINT8", _pixels),
    "bytes": ("BYTES", _files),
}


def _flat(data: list[Any] | None) -> list[Any]:
    """Nested lists as one; they are as deep as the sender likes."""
    if data is None:
        raise _invalid("inputs.0.data", "missing, and no binary data either")
    while any(isinstance(one, list) for one in data):
        if not all(isinstance(one, list) for one in data):
            raise _invalid("inputs.0.data", "lists and values are mixed")
        data = [value for one in data for value in one]
    return data


def _elements(data: memoryview) -> list[bytes]:
    """Elements of BYTES: each has its length before it, in four bytes."""
    found, at = [], 0
    while at < len(data):
        start = at + 4
        at = start + struct.unpack_from("<I", data, at)[0] if start <= len(data) else start
        if at > len(data):
            raise _invalid("inputs.0", "the binary data end within an element")
        found.append(bytes(data[start:at]))
    return found


# -- answers ----------------------------------------------------------------------------------------

_DTYPES = {"BYTES": object, "FP32": np.float32, "BOOL": bool, "INT64": np.int64}
# With the datatype, the sizes behind the number of images (-1: that of classes), and the value of an answer.
OUTPUTS: dict[str, tuple[str, list[int], Callable[[StreamAnswer], Any]]] = {
    "labels": ("BYTES", [], lambda answer: answer.result.label or ""),
    "probabilities": ("FP32", [-1], lambda answer: answer.probabilities),
    "zero_shot_labels": ("BYTES", [], lambda answer: answer.result.zero_shot_label or ""),
    "adapted": ("BOOL", [], lambda answer: answer.result.adapted),
    "changed": ("BOOL", [], lambda answer: answer.result.changed),
    "support": ("INT64", [], lambda answer: -1 if answer.result.support is None else answer.result.support),
    "state_version": ("INT64", [], lambda answer: answer.result.state_version),
    "queued_ms": ("FP32", [], lambda answer: answer.queued_ms),
    "computed_ms": ("FP32", [], lambda answer: answer.computed_ms),
    "ids": ("BYTES", [], lambda answer: answer.id),
    "errors": ("BYTES", [], lambda answer: answer.result.error or ""),
}


def _output(name: str, answers: Sequence[StreamAnswer]) -> NDArray[Any]:
    """One row per image; at least one must have an answer."""
    datatype, _, value = OUTPUTS[name]
    values = [value(answer) for answer in answers]
    if name == "probabilities":
        nothing = np.zeros_like(next(row for row in values if row is not None))
        values = [nothing if row is None else row for row in values]
    made = np.array(values, _DTYPES[datatype])
    return np.nan_to_num(made) if datatype == "FP32" else made


def render(
    asked: OipRequestJson, answers: Sequence[StreamAnswer], model_name: str, version: str
) -> tuple[bytes, int | None]:
    """The body of a response, and how many of its bytes are JSON; None if all.

    Args:
        asked: The request.
        answers: One per image.
        model_name: As the client calls the model.
        version: Of the model.
    """
    binary = (asked.parameters or OipParametersJson()).binary_data_output
    wanted = asked.outputs or [OipOutputJson(name=name) for name in OUTPUTS]
    outputs, parts = [], []
    for one in wanted:
        values, own = _output(one.name, answers), one.parameters and one.parameters.binary_data
        output: dict[str, Any] = {"name": one.name, "datatype": OUTPUTS[one.name][0]}
        output["shape"] = list(values.shape)
        if binary if own is None else own:
            parts.append(_as_bytes(values))
            output["parameters"] = {"binary_data_size": len(parts[-1])}
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
                "inputs": [{"name": "bytes", "shape": [1], "datatype": "BYTES", "data": ["iVBORw0KGgo="]}],
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
            for name, (kind, sizes, _) in OUTPUTS.items()
        ]
        return OipModelJson(
            name=model.name,
            versions=[VERSION],
            platform="ramen_pytorch",
            inputs=[
                OipTensorInfoJson(name="images", datatype="UINT8", shape=[-1, -1, -1, 3]),
                OipTensorInfoJson(name="bytes", datatype="BYTES", shape=[-1]),
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
        asked, images = await parsed(
            len(body),
            lambda: parse_request(body, length, self._model.max_batch, service.settings.max_json_bytes),
        )
        facts.images = len(images)
        parameters = asked.parameters or OipParametersJson()
        service.check_stream(request, request.state.caller, parameters.stream)
        longest, timeout_ms = service.settings.max_timeout_ms, None
        if parameters.timeout:  # Triton's clients mean "none" by 0
            timeout_ms = max(1, parameters.timeout // 1000)
            if timeout_ms > longest:
                raise _invalid("parameters.timeout", f"must be at most {longest * 1000} microseconds")
        deadline = service.deadline(request, timeout_ms)
        work = service.backend.call(Classify(parameters.stream, images, remaining(deadline)))
        answers = await unless_gone(request, work)
        if all(answer.result.error is not None for answer in answers):
            raise ApiError(422, "undecodable", answers[0].result.error or "")
        text, json_length = render(asked, answers, name, VERSION)
        if json_length is None:
            return Response(text, media_type="application/json")
        headers = {HEADER_LENGTH: str(json_length)}
        return Response(text, headers=headers, media_type="application/octet-stream")
