"""The application: all routes on one backend."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from ramen import __version__
from ramen.serve.http.backend import Backend
from ramen.serve.http.classify_routes import add_classify_route
from ramen.serve.http.errors import from_http, response_for
from ramen.serve.http.guarded_route import GuardedRoute
from ramen.serve.http.monitoring_routes import add_monitoring_routes
from ramen.serve.http.oip import OipInputJson, OipOutputJson, OipRequestJson
from ramen.serve.http.oip_routes import add_inference_protocol
from ramen.serve.http.recording import RequestRecorder
from ramen.serve.http.schemas import ErrorDetailJson, ErrorJson, ImageJson, ImagesJson, OipErrorJson
from ramen.serve.http.service import Service
from ramen.serve.http.settings import HttpSettings
from ramen.serve.http.stream_routes import add_stream_routes

_DESCRIPTION = """
Classifies images in named streams. Each stream adapts to its own images, without labels, and every answer
says what the model would have said without adaptation.

Errors are `{"error": {"code": ..., "message": ...}}`, and `{"error": ...}` in the Open Inference Protocol
(`/v2`).
"""


# Schemas that routes name in their descriptions, which the framework therefore does not see.
_NAMED_SCHEMAS = (
    *(ErrorJson, ErrorDetailJson, OipErrorJson),
    *(ImagesJson, ImageJson),
    *(OipRequestJson, OipInputJson, OipOutputJson),
)


def create_app(backend: Backend, settings: HttpSettings | None = None) -> FastAPI:
    """The HTTP front of a backend, which it closes when it ends.

    Args:
        backend: Who answers.
        settings: Limits, and who may send requests.
    """
    service = Service(backend, settings or HttpSettings())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.stopping.clear()
        yield
        service.stopping.set()
        await backend.close()

    app = FastAPI(
        title="Ramen",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,  # these pages load their scripts from the network
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    app.router.route_class = GuardedRoute
    app.add_middleware(RequestRecorder, service=service)
    app.add_exception_handler(HTTPException, _refuse)
    add_classify_route(app, service)
    add_stream_routes(app, service)
    add_monitoring_routes(app, service)
    add_inference_protocol(app, service)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = from_http(error)
    if answer.status_code == 405:
        answer.headers = {"Allow": ", ".join(_methods_at(request))}
    return response_for(answer, request.url.path)


def _methods_at(request: Request) -> list[str]:
    """What may be done with a path; the framework names the methods of its first route alone."""
    routes = (route for route in request.app.routes if isinstance(route, Route))
    found = [route.methods or set() for route in routes if route.matches(request.scope)[0] != Match.NONE]
    return sorted(set().union(*found))


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with what the framework does not see."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        parts = document.setdefault("components", {})
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        template = "#/components/schemas/{model}"
        for model in _NAMED_SCHEMAS:
            schema = model.model_json_schema(ref_template=template)
            schema.pop("$defs", None)
            parts["schemas"][model.__name__] = schema
        app.openapi_schema = document
    return app.openapi_schema
