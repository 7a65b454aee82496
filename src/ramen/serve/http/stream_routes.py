"""Streams: create, list, inspect, reset, snapshot, delete; their classes; true labels."""

from enum import Enum
from typing import Annotated

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from ramen.serve.engine.stream_info import StreamInfo
from ramen.serve.http.classify_routes import StreamName
from ramen.serve.http.guarded_route import errors, needs
from ramen.serve.http.schemas import (
    ActivityJson,
    ClassesJson,
    FeedbackJson,
    NewStreamJson,
    StreamJson,
    StreamsJson,
    TrueLabelsJson,
    activity_json,
    feedback_json,
    stream_json,
)
from ramen.serve.http.service import Service
from ramen.serve.http.tokens import TokenRecord

_PAGE = 1000  # streams that are looked through at a time for those that a token may see
_TAGS: list[str | Enum] = ["streams"]
_WITH_BODY = {"takes_body": True}
_NamePart = Annotated[str, Query(max_length=64)]


def add_stream_routes(app: FastAPI, service: Service) -> None:
    """Add the routes to an application."""
    _add_reading(app, service)
    _add_managing(app, service)
    _add_learning(app, service)


def _add_reading(app: FastAPI, service: Service) -> None:
    backend = service.backend

    @app.get("/v1/streams", tags=_TAGS, response_model=StreamsJson, responses=errors(422))
    @needs("classify", "manage")
    async def list_streams(
        request: Request,
        after: _NamePart = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        prefix: _NamePart = "",
    ) -> StreamsJson:
        """List streams by name, those that the token may use."""
        found = await _visible(service, request.state.caller, after, limit + 1, prefix)
        page = found[:limit]
        return StreamsJson(
            streams=[stream_json(info) for info in page],
            next=page[-1].name if len(found) > limit else None,
        )

    @app.get("/v1/streams/{stream}", tags=_TAGS, response_model=StreamJson, responses=errors(404, 422))
    @needs("classify", "manage")
    async def get_stream(stream: StreamName) -> StreamJson:
        """Inspect a stream."""
        return stream_json(await backend.stream(stream))

    @app.get(
        "/v1/streams/{stream}/activity",
        tags=_TAGS,
        response_model=ActivityJson,
        responses=errors(404, 422),
    )
    @needs("classify", "manage")
    async def activity(stream: StreamName) -> ActivityJson:
        """What happened in a stream lately: entropy, changed answers, how often each class was answered."""
        return activity_json(await backend.activity(stream))


async def _visible(
    service: Service, caller: TokenRecord, after: str, count: int, prefix: str
) -> list[StreamInfo]:
    """The first streams that a token may see."""
    if "*" in caller.streams:
        return await service.backend.streams(after=after, limit=count, prefix=prefix)
    found: list[StreamInfo] = []
    while len(found) < count:
        page = await service.backend.streams(after=after, limit=_PAGE, prefix=prefix)
        found += [info for info in page if caller.sees(info.name)]
        if len(page) < _PAGE:
            break
        after = page[-1].name
    return found[:count]


def _add_managing(app: FastAPI, service: Service) -> None:
    backend = service.backend

    @app.put(
        "/v1/streams/{stream}",
        tags=_TAGS,
        response_model=StreamJson,
        responses={
            200: {"description": "The stream was there, with these classes."},
            201: {"model": StreamJson, "description": "The stream is new."},
            **errors(409, 422),
        },
        openapi_extra=_WITH_BODY,
    )
    @needs("manage")
    async def create_stream(
        stream: StreamName, response: Response, new: NewStreamJson | None = None
    ) -> StreamJson:
        """Create a stream, with classes of its own if they are given.

        409 if it exists with other classes.
        """
        info, is_new = await backend.create_stream(stream, None if new is None else new.classes)
        response.status_code = 201 if is_new else 200
        return stream_json(info)

    @app.delete("/v1/streams/{stream}", tags=_TAGS, status_code=204, responses=errors(404, 409, 422))
    @needs("manage")
    async def delete_stream(stream: StreamName) -> Response:
        """Remove a stream, and what it learned from the disk."""
        await backend.delete(stream)
        return Response(status_code=204)

    changing = errors(404, 409, 422)

    @app.post("/v1/streams/{stream}/reset", tags=_TAGS, response_model=StreamJson, responses=changing)
    @needs("manage")
    async def reset(stream: StreamName) -> StreamJson:
        """Forget what a stream learned."""
        return stream_json(await backend.reset(stream))

    @app.post("/v1/streams/{stream}/snapshot", tags=_TAGS, response_model=StreamJson, responses=changing)
    @needs("manage")
    async def snapshot(stream: StreamName) -> StreamJson:
        """Return when everything that a stream learned is on disk."""
        return stream_json(await backend.snapshot(stream))

    @app.put(
        "/v1/streams/{stream}/classes",
        tags=_TAGS,
        response_model=StreamJson,
        responses=changing,
        openapi_extra=_WITH_BODY,
    )
    @needs("manage")
    async def set_classes(stream: StreamName, classes: ClassesJson) -> StreamJson:
        """Give a stream other classes; what it learned with the old ones is forgotten."""
        return stream_json(await backend.set_classes(stream, classes.classes))


def _add_learning(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/streams/{stream}/feedback",
        tags=_TAGS,
        response_model=FeedbackJson,
        responses=errors(404, 409, 422),
        openapi_extra=_WITH_BODY,
    )
    @needs("classify")
    async def feedback(stream: StreamName, truth: TrueLabelsJson) -> FeedbackJson:
        """Send true labels of answers, for the accuracy of the stream; nothing is learned from them."""
        pairs = [(label.id, label.label) for label in truth.labels]
        return feedback_json(await service.backend.feedback(stream, pairs))
