"""All other endpoints: streams, their classes and true labels; health, figures, events, the dashboard."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from enum import Enum
from typing import Annotated

from fastapi import FastAPI, Query
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from ramen.client.operations import (
    CreateStream,
    Delete,
    EngineStatistics,
    Feedback,
    GetActivity,
    GetModel,
    GetStatistics,
    GetStream,
    IsReady,
    ListStreams,
    Reset,
    SetClasses,
    Snapshot,
    StreamInfo,
)
from ramen.serve.http.auth import TokenRecord
from ramen.serve.http.classify import StreamName
from ramen.serve.http.dashboard import dashboard_csp, dashboard_page
from ramen.serve.http.endpoints import errors, needs, open_to_all, serves
from ramen.serve.http.errors import ApiError
from ramen.serve.http.schemas import (
    ActivityJson,
    ClassesJson,
    FeedbackJson,
    ModelJson,
    NewStreamJson,
    StateJson,
    StreamJson,
    StreamsJson,
    TrueLabelsJson,
    activity_json,
    feedback_json,
    finite,
    stream_json,
)
from ramen.serve.http.service import Service

EVENTS = "/v1/events"
_PAGE = 1000  # streams that are looked through at a time for those that a token may see
_FOLLOWING = "metrics", "manage"  # scopes for events
_STREAMS, _MONITORING = "streams", "monitoring"
_TAGS: list[str | Enum] = [_MONITORING]
_WITH_BODY = {"takes_body": True}
_NamePart = Annotated[str, Query(max_length=64)]


def add_endpoints(app: FastAPI, service: Service) -> None:
    """Add the endpoints to an application."""
    _add_streams(app, service)
    _add_health(app, service)
    _add_figures(app, service)
    _add_events(app, service)
    _add_dashboard(app)


def _add_streams(app: FastAPI, service: Service) -> None:
    """Add the routes to an application."""
    call = service.backend.call

    @serves(app, ListStreams, _STREAMS, response_model=StreamsJson)
    async def list_streams(
        request: Request,
        after: _NamePart = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        prefix: _NamePart = "",
    ) -> StreamsJson:
        """List streams by name, those that the token may use."""
        found = await _visible(service, request.state.caller, ListStreams(after, limit + 1, prefix))
        page = found[:limit]
        return StreamsJson(
            streams=[stream_json(info) for info in page],
            next=page[-1].name if len(found) > limit else None,
        )

    @serves(app, GetStream, _STREAMS, response_model=StreamJson)
    async def get_stream(stream: StreamName) -> StreamJson:
        return stream_json(await call(GetStream(stream)))

    @serves(app, GetActivity, _STREAMS, response_model=ActivityJson)
    async def activity(stream: StreamName) -> ActivityJson:
        """What happened in a stream lately: entropy, changed answers, how often each class was answered."""
        return activity_json(await call(GetActivity(stream)))

    created = {
        200: {"description": "The stream was there, with these classes."},
        201: {"model": StreamJson, "description": "The stream is new."},
    }

    @serves(
        app, CreateStream, _STREAMS, response_model=StreamJson, responses=created, openapi_extra=_WITH_BODY
    )
    async def create_stream(
        stream: StreamName, response: Response, new: NewStreamJson | None = None
    ) -> StreamJson:
        """Create a stream, with classes of its own if they are given.

        409 if it exists with other classes.
        """
        info, is_new = await call(CreateStream(stream, None if new is None else new.classes))
        response.status_code = 201 if is_new else 200
        return stream_json(info)

    @serves(app, Delete, _STREAMS, status_code=204)
    async def delete_stream(stream: StreamName) -> Response:
        await call(Delete(stream))
        return Response(status_code=204)

    @serves(app, Reset, _STREAMS, response_model=StreamJson)
    async def reset(stream: StreamName) -> StreamJson:
        return stream_json(await call(Reset(stream)))

    @serves(app, Snapshot, _STREAMS, response_model=StreamJson)
    async def snapshot(stream: StreamName) -> StreamJson:
        return stream_json(await call(Snapshot(stream)))

    @serves(app, SetClasses, _STREAMS, response_model=StreamJson, openapi_extra=_WITH_BODY)
    async def set_classes(stream: StreamName, classes: ClassesJson) -> StreamJson:
        return stream_json(await call(SetClasses(stream, classes.classes)))

    @serves(app, Feedback, _STREAMS, response_model=FeedbackJson, openapi_extra=_WITH_BODY)
    async def feedback(stream: StreamName, truth: TrueLabelsJson) -> FeedbackJson:
        """Send true labels of answers, for the accuracy of the stream; nothing is learned from them."""
        pairs = [(label.id, label.label) for label in truth.labels]
        return feedback_json(await call(Feedback(stream, pairs)))


async def _visible(service: Service, caller: TokenRecord, asked: ListStreams) -> list[StreamInfo]:
    """The first streams that a token may see."""
    if "*" in caller.streams:
        return await service.backend.call(asked)
    found: list[StreamInfo] = []
    after = asked.after
    while len(found) < asked.limit:
        page = await service.backend.call(ListStreams(after, _PAGE, asked.prefix))
        found += [info for info in page if caller.sees(info.name)]
        if len(page) < _PAGE:
            break
        after = page[-1].name
    return found[: asked.limit]


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", tags=_TAGS, response_model=StateJson)
    @open_to_all
    async def healthz() -> StateJson:
        """Whether the process is alive."""
        return StateJson(status="alive")

    @serves(app, IsReady, _MONITORING, response_model=StateJson)
    async def readyz() -> StateJson:
        await service.check_ready()
        return StateJson(status="ready")


def _add_figures(app: FastAPI, service: Service) -> None:
    @serves(app, GetModel, _MONITORING, response_model=ModelJson)
    async def model() -> ModelJson:
        return ModelJson(**vars(service.backend.model))

    @serves(app, GetStatistics, _MONITORING, response_model=EngineStatistics)
    async def statistics() -> EngineStatistics:
        return await service.backend.call(GetStatistics())

    @app.get(
        "/metrics",
        tags=_TAGS,
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    @needs("metrics")
    async def metrics() -> Response:
        """Figures for Prometheus; none is per stream, as each stream would be a time series of its own."""
        backend = service.backend
        page = service.metrics.page(
            await backend.figures(service.figures), await backend.call(GetStatistics())
        )
        return Response(page, media_type=CONTENT_TYPE_LATEST)


def _add_events(app: FastAPI, service: Service) -> None:
    figures, shared = service.figures, _SharedStatistics(service)

    def may_go_on(request: Request) -> bool:
        try:
            return service.access.caller(request.headers).may(_FOLLOWING)
        except ApiError:
            return False

    async def events(request: Request) -> AsyncIterator[bytes]:
        if figures.listeners >= service.settings.max_listeners:
            return  # several came at the same moment
        figures.listeners += 1
        try:
            while not service.stopping.is_set() and may_go_on(
                request
            ):  # if the client goes away, the response ends this
                yield b"event: statistics\ndata: " + await shared.line() + b"\n\n"
                await _wait(service.stopping, service.settings.events_interval)
        finally:
            figures.listeners -= 1

    @app.get(
        EVENTS,
        tags=_TAGS,
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
            **errors(429),
        },
    )
    @needs(*_FOLLOWING)
    async def follow(request: Request) -> StreamingResponse:
        """Server-sent events: `statistics`, each second, with the same fields as `/v1/statistics`.

        They end when the token is revoked, or expires.
        """
        if service.stopping.is_set():
            await service.check_ready()
        if figures.listeners >= service.settings.max_listeners:
            most = service.settings.max_listeners
            raise ApiError(429, "too_many_listeners", f"at most {most} may follow at a time", retry_after=5.0)
        return StreamingResponse(events(request), media_type="text/event-stream")


class _SharedStatistics:
    """One line of JSON for all listeners of a moment."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self._line, self._made = b"", float("-inf")

    async def line(self) -> bytes:
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._made > self._service.settings.events_interval / 2:
                statistics: EngineStatistics = await self._service.backend.call(GetStatistics())
                values = asdict(statistics)
                self._line, self._made = json.dumps(_finite(values)).encode(), now
            return self._line


def _finite(value: object) -> object:
    """The same without NaN and infinity, which JSON has not."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return finite(value) if isinstance(value, float) else value


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _add_dashboard(app: FastAPI) -> None:
    page, policy = dashboard_page(), dashboard_csp()

    @app.get(
        "/",
        tags=_TAGS,
        response_class=HTMLResponse,
        responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
    )
    @open_to_all
    async def dashboard() -> Response:
        """The dashboard: a page without data, which it fetches with your token."""
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})
