"""Health, figures, events, the model, and the dashboard."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from enum import Enum

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, Response, StreamingResponse

from ramen.serve.dashboard import dashboard_csp, dashboard_page
from ramen.serve.engine.stream_info import EngineStatistics
from ramen.serve.http.errors import ApiError
from ramen.serve.http.guarded_route import errors, needs, open_to_all
from ramen.serve.http.recording import EVENTS
from ramen.serve.http.schemas import ModelJson, StateJson, finite, model_json
from ramen.serve.http.service import Service

_TAGS: list[str | Enum] = ["monitoring"]


def add_monitoring_routes(app: FastAPI, service: Service) -> None:
    """Add the routes to an application."""
    _add_health(app, service)
    _add_figures(app, service)
    _add_events(app, service)
    _add_dashboard(app)


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", tags=_TAGS, response_model=StateJson)
    @open_to_all
    async def healthz() -> StateJson:
        """Whether the process is alive."""
        return StateJson(status="alive")

    @app.get("/readyz", tags=_TAGS, response_model=StateJson, responses=errors(503))
    @open_to_all
    async def readyz() -> StateJson:
        """Whether images can be answered now."""
        await service.check_ready()
        return StateJson(status="ready")


def _add_figures(app: FastAPI, service: Service) -> None:
    @app.get("/v1/model", tags=_TAGS, response_model=ModelJson)
    @needs()
    async def model() -> ModelJson:
        """What is served."""
        return model_json(service.backend.model)

    @app.get("/v1/statistics", tags=_TAGS, response_model=EngineStatistics)
    @needs("metrics", "manage")
    async def statistics() -> EngineStatistics:
        """The whole engine: counters, queue, latency, streams."""
        return await service.backend.statistics()

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
        page = service.metrics.page(await backend.figures(service.figures), await backend.statistics())
        return Response(page, media_type=CONTENT_TYPE_LATEST)


def _add_events(app: FastAPI, service: Service) -> None:
    figures, shared = service.figures, _SharedStatistics(service)

    async def events() -> AsyncIterator[bytes]:
        if figures.listeners >= service.settings.max_listeners:
            return  # several came at the same moment
        figures.listeners += 1
        try:
            while not service.stopping.is_set():  # if the client goes away, the response ends this
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
    @needs("metrics", "manage")
    async def follow() -> StreamingResponse:
        """Server-sent events: `statistics`, each second, with the same fields as `/v1/statistics`."""
        if service.stopping.is_set():
            await service.check_ready()
        if figures.listeners >= service.settings.max_listeners:
            most = service.settings.max_listeners
            raise ApiError(429, "too_many_listeners", f"at most {most} may follow at a time", retry_after=5.0)
        return StreamingResponse(events(), media_type="text/event-stream")


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
                values = asdict(await self._service.backend.statistics())
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
