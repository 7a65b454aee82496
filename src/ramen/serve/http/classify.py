"""``POST /v1/streams/{stream}/classify``, from top to bottom: head, token, room, body, images, answers, JSON.

Most requests come here, and under overload most of them end in the first lines. What they cost is taken from
those that are answered, so they are not routed by FastAPI, which only describes the endpoint.
"""

import re
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Query
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from ramen.client.operations import STREAM_PATTERN, Classify, GetStream
from ramen.serve.http.bodies import (
    IMAGE_TYPES,
    RAW_PIXELS,
    ImagesHead,
    LimitedBody,
    declared_length,
    read_images,
)
from ramen.serve.http.endpoints import serves
from ramen.serve.http.errors import ApiError, from_engine, from_pydantic
from ramen.serve.http.schemas import ClassifyJson, ImagesJson, answer_values
from ramen.serve.http.service import Service, facts_of, remaining, unless_gone

StreamName = Annotated[
    str,
    Path(
        pattern=f"^{STREAM_PATTERN}$",
        description="Up to 64 letters, digits and . _ - of which the first is a letter or a digit.",
        examples=["camera-1"],
    ),
]
Probabilities = Annotated[
    Literal["top", "all"], Query(description="Of the best five classes, or also of all.")
]
_METHOD, _ROUTE = Classify.http
_PATH = re.compile(_ROUTE.replace("{stream}", "([^/]+)"))
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ONE_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class ClassifyEndpoint:
    """Classifies the images of a request.

    Args:
        service: What endpoints share.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        longest = service.settings.max_timeout_ms
        self.timeout_type: Any = Annotated[
            int | None, Query(ge=1, le=longest, description="Until when an answer is of use.")
        ]
        kinds: dict[tuple[str, str], Any] = {("path", "stream"): StreamName}
        kinds["query", "timeout_ms"] = self.timeout_type
        kinds["query", "probabilities"] = Probabilities
        self._types: dict[tuple[str, str], TypeAdapter[Any]] = {
            place: TypeAdapter(kind) for place, kind in kinds.items()
        }

    def stream_of(self, scope: Scope) -> str | None:
        """The stream that a request has images for; None if it is another request."""
        found = _PATH.fullmatch(scope["path"]) if scope["method"] == _METHOD else None
        return None if found is None else found[1]

    async def __call__(self, request: Request, stream: str) -> Response:
        """Answer a request."""
        service, facts = self._service, facts_of(request)
        model, limit = service.backend.model, service.settings.max_body_bytes
        facts.route = _ROUTE
        service.authorize(request, Classify.scopes, stream)  # 401, 403
        declared_length(request.headers, limit)  # 413, 415
        head = ImagesHead.of(request.headers, model.max_batch)  # 415
        timeout_ms, probabilities = self._asked(request, stream)  # 422
        await self._check_room(stream, head)  # 429
        await service.check_ready()  # 503
        deadline = service.deadline(request, timeout_ms)
        with LimitedBody(request, limit, service).admitted() as limited:  # 408, 413, 429
            images = await read_images(limited, head, deadline, service)  # 400, 422, 504
            facts.images = len(images)
            work = service.backend.call(Classify(stream, images, remaining(deadline)))
            answers = await unless_gone(limited, work)
        if len(answers) == 1 and answers[0].result.error is not None:
            raise ApiError(422, "undecodable", answers[0].result.error)
        wants_all = probabilities == "all"
        classes = (await service.backend.call(GetStream(stream))).classes if wants_all else None
        return JSONResponse(
            {"stream": stream, "answers": [answer_values(answer, classes) for answer in answers]}
        )

    def _asked(self, request: Request, stream: str) -> tuple[int | None, str]:
        """The query; 422 for values that make no sense, also of the path."""
        query = request.query_params
        given = {"stream": stream, "timeout_ms": query.get("timeout_ms")}
        given["probabilities"] = query.get("probabilities", "top")
        values, wrong = {}, []
        for (place, name), kind in self._types.items():
            try:
                values[name] = kind.validate_python(given[name])
            except ValidationError as error:
                wrong += [one | {"loc": (place, name)} for one in error.errors(include_url=False)]
        if wrong:
            raise from_pydantic(RequestValidationError(wrong))
        return values["timeout_ms"], values["probabilities"]

    async def _check_room(self, stream: str, head: ImagesHead) -> None:
        """429 if the queue is full, before anything of the body is read."""
        backend = self._service.backend
        if self._service.stopping.is_set():
            return
        refusal = await backend.refusal(stream, head.images, head.nbytes)
        if refusal is not None:
            backend.count_refusal()
            raise from_engine(refusal)


def add_classify_endpoint(app: FastAPI, service: Service) -> ClassifyEndpoint:
    """Add the endpoint to an application, which describes it."""
    endpoint = ClassifyEndpoint(service)
    timeout_type: Any = endpoint.timeout_type
    shape = {
        "name": "X-Shape",
        "in": "header",
        "description": f"With {RAW_PIXELS}: n,height,width,3.",
        "schema": {"type": "string"},
        "example": "1,224,224,3",
    }

    async def classify(
        request: Request,
        stream: StreamName,
        timeout_ms: timeout_type = None,
        probabilities: Probabilities = "top",
    ) -> Response:
        """Classify images in a stream, which adapts to them.

        The images are a file in the body, several as `multipart/form-data` (parts called `files`), base64 in
        JSON, or pixels in uint8 with the header `X-Shape`. A single image that cannot be decoded is refused
        with 422; among several, it gets an answer whose `error` says why, and the others are answered.
        """
        return await endpoint(request, stream)

    extra = {"requestBody": _request_body(), "parameters": [shape]}
    serves(app, Classify, "classify", response_model=ClassifyJson, openapi_extra=extra)(classify)
    return endpoint


def _request_body() -> dict[str, Any]:
    """The forms of a body with images, for the API's description."""
    files = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
    form = {"type": "object", "properties": {"files": files}, "required": ["files"]}
    return {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": f"#/components/schemas/{ImagesJson.__name__}"},
                "example": {"images": [{"key": "a.png", "data": _ONE_PIXEL}]},
            },
            "multipart/form-data": {"schema": form},
            **dict.fromkeys((*IMAGE_TYPES, "application/octet-stream", RAW_PIXELS), _BINARY),
        },
    }
