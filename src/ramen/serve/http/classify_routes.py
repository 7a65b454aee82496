"""``POST /v1/streams/{stream}/classify``."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse

from ramen.serve.http.bodies import parsed, read_body, read_pixels
from ramen.serve.http.early_refusal import CLASSIFY, CLASSIFY_SCOPE
from ramen.serve.http.errors import ApiError
from ramen.serve.http.guarded_route import errors, needs
from ramen.serve.http.image_bodies import IMAGE_TYPES, RAW_PIXELS, check_content_type, images_in
from ramen.serve.http.request_facts import facts_of
from ramen.serve.http.schemas import STREAM_PATTERN, ClassifyJson, ImagesJson, answer_values
from ramen.serve.http.service import Service, remaining, unless_gone

StreamName = Annotated[
    str,
    Path(
        pattern=STREAM_PATTERN,
        description="Up to 64 letters, digits and . _ - of which the first is a letter or a digit.",
        examples=["camera-1"],
    ),
]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ONE_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


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


def add_classify_route(app: FastAPI, service: Service) -> None:
    """Add the route to an application."""
    settings, model = service.settings, service.backend.model

    @app.post(
        CLASSIFY,
        tags=["classify"],
        response_model=ClassifyJson,
        responses=errors(404, 409),
        openapi_extra={
            "requestBody": _request_body(),
            "parameters": [
                {
                    "name": "X-Shape",
                    "in": "header",
                    "description": f"With {RAW_PIXELS}: n,height,width,3.",
                    "schema": {"type": "string"},
                    "example": "1,224,224,3",
                }
            ],
        },
    )
    @needs(CLASSIFY_SCOPE)
    async def classify(
        request: Request,
        stream: StreamName,
        timeout_ms: Annotated[
            int | None,
            Query(ge=1, le=settings.max_timeout_ms, description="Until when an answer is of use."),
        ] = None,
        probabilities: Annotated[
            Literal["top", "all"], Query(description="Of the best five classes, or also of all.")
        ] = "top",
    ) -> JSONResponse:
        """Classify images in a stream, which adapts to them.

        The images are a file in the body, several as `multipart/form-data` (parts called `files`), base64 in
        JSON, or pixels in uint8 with the header `X-Shape`. A single image that cannot be decoded is refused
        with 422; among several, it gets an answer whose `error` says why, and the others are answered.
        """
        facts = facts_of(request)
        kind = check_content_type(request.headers)
        await service.check_ready()
        deadline = service.deadline(facts.started, timeout_ms)
        if kind == RAW_PIXELS:  # nothing to parse
            body = await read_pixels(request, deadline, service.backend.memory_for)
            images = images_in(request.headers, body, model.max_batch)
        else:
            body = await read_body(request, deadline)
            images = await parsed(len(body), partial(images_in, request.headers, body, model.max_batch))
        del body
        facts.images = len(images)
        work = service.backend.classify(stream, images, timeout=remaining(deadline))
        answers = await unless_gone(request, work)
        if len(answers) == 1 and answers[0].result.error is not None:
            raise ApiError(422, "undecodable", answers[0].result.error)
        classes = (await service.backend.stream(stream)).classes if probabilities == "all" else None
        return JSONResponse(
            {"stream": stream, "answers": [answer_values(answer, classes) for answer in answers]}
        )
