"""The Open Inference Protocol (KServe v2 over REST), for clients that exist already."""

import re
from enum import Enum
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ramen import __version__
from ramen.serve.engine.answers import StreamAnswer
from ramen.serve.http import oip
from ramen.serve.http.access import check_stream
from ramen.serve.http.bodies import parsed, read_body
from ramen.serve.http.errors import ApiError
from ramen.serve.http.guarded_route import errors, needs, open_to_all
from ramen.serve.http.request_facts import facts_of
from ramen.serve.http.schemas import OipErrorJson
from ramen.serve.http.service import Service, remaining, unless_gone

VERSION = "1"
_TAGS: list[str | Enum] = ["open inference protocol"]
_TYPES = ("", "application/json", "application/octet-stream")
_BINARY = {"schema": {"type": "string", "format": "binary"}}


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
        elif model is oip.OipResponseJson:
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
                oip.OipResponseJson,
                404,
                409,
                methods=["POST"],
                **shown | {"openapi_extra": infer},
            )


def _part(name: str) -> dict[str, Any]:
    """A part of a path, for the API's description."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


_HEADER = {
    "name": oip.HEADER_LENGTH,
    "in": "header",
    "description": "How many bytes of the body are JSON, if binary tensor data follow it.",
    "schema": {"type": "integer", "minimum": 0},
}
_REQUEST_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"$ref": f"#/components/schemas/{oip.OipRequestJson.__name__}"},
            "example": {
                "parameters": {"stream": "camera-1"},
                "inputs": [{"name": oip.FILES, "shape": [1], "datatype": "BYTES", "data": ["iVBORw0KGgo="]}],
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
            for name, (kind, sizes) in oip.OUTPUTS.items()
        ]
        return OipModelJson(
            name=model.name,
            versions=[VERSION],
            platform="ramen_pytorch",
            inputs=[
                OipTensorInfoJson(name=oip.PIXELS, datatype="UINT8", shape=[-1, -1, -1, 3]),
                OipTensorInfoJson(name=oip.FILES, datatype="BYTES", shape=[-1]),
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
        is_ready = not self._service.stopping.is_set() and await self._service.backend.ready()
        content = ({} if name is None else {"name": name}) | {"ready": is_ready}
        return JSONResponse(content, 200 if is_ready else 503)

    @needs("classify")
    async def infer(self, request: Request) -> Response:
        """Classify images in the stream that `parameters.stream` names; `default` if it names none.

        `parameters.timeout` is in microseconds, as Triton's clients send it. Files in JSON are base64.
        """
        name, service, facts = self._check_name(request), self._service, facts_of(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in _TYPES:
            raise ApiError(415, "content_type", f"Content-Type must be one of {', '.join(_TYPES[1:])}")
        await service.check_ready()
        limit = service.deadline(facts.started, None)
        body = await read_body(request, limit)
        length = request.headers.get(oip.HEADER_LENGTH)
        asked = await parsed(
            len(body),
            lambda: oip.parse_request(body, length, self._model.max_batch, service.settings.max_json_bytes),
        )
        oip.check_outputs(asked)
        facts.stream, facts.images = asked.stream[:64], len(asked.images)
        check_stream(request.state.caller, asked.stream)
        answers = await self._answers(request, asked)
        text, json_length = oip.render(asked, answers, name, VERSION)
        if json_length is None:
            return Response(text, media_type="application/json")
        headers = {oip.HEADER_LENGTH: str(json_length)}
        return Response(text, headers=headers, media_type="application/octet-stream")

    async def _answers(self, request: Request, asked: oip.InferRequest) -> list[StreamAnswer]:
        service = self._service
        longest = service.settings.max_timeout_ms
        if asked.timeout_ms is not None and asked.timeout_ms > longest:
            raise ApiError(
                422, "invalid", f"parameters.timeout: must be at most {longest * 1000} microseconds"
            )
        deadline = service.deadline(facts_of(request).started, asked.timeout_ms)
        work = service.backend.classify(asked.stream, asked.images, timeout=remaining(deadline))
        answers = await unless_gone(request, work)
        if all(answer.result.error is not None for answer in answers):
            raise ApiError(422, "undecodable", answers[0].result.error or "")
        return answers
