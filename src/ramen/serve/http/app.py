"""The application, and what is around every request: its id, log line, counts, headers, answers to failures.

The log is on standard error, one line per request or event, as JSON or for people. Lines have no content of
images, no tokens and no query strings.
"""

import json
import logging
import re
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramen import __version__
from ramen.serve.http.classify import ClassifyEndpoint, add_classify_endpoint
from ramen.serve.http.endpoints import GuardedRoute
from ramen.serve.http.errors import ApiError, from_http, response_for
from ramen.serve.http.oip import OipRequestJson, add_inference_protocol
from ramen.serve.http.protocol import CONNECTION
from ramen.serve.http.routes import EVENTS, add_endpoints
from ramen.serve.http.schemas import ErrorJson, ImagesJson, OipErrorJson
from ramen.serve.http.service import Backend, RequestFacts, Service, client_gone
from ramen.serve.settings import HttpSettings
from ramen.utils import checks

_DESCRIPTION = """
Classifies images in named streams. Each stream adapts to its own images, without labels, and every answer
says what the model would have said without adaptation.

Errors are `{"error": {"code": ..., "message": ...}}`, and `{"error": ...}` in the Open Inference Protocol
(`/v2`).
"""


# Schemas that routes name in their descriptions, which the framework therefore does not see.
_NAMED_SCHEMAS = ErrorJson, OipErrorJson, ImagesJson, OipRequestJson


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
    app.add_exception_handler(HTTPException, _refuse)
    classify = add_classify_endpoint(app, service)
    add_endpoints(app, service)
    add_inference_protocol(app, service)
    app.add_middleware(RequestRecorder, service=service, classify=classify)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


# -- around every request ---------------------------------------------------------------------------

REQUEST_LOG = logging.getLogger("ramen.serve.request")
_HEALTH = ("/healthz", "/readyz")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
_REQUEST_ID = b"x-request-id"


class RequestRecorder:
    """An ASGI middleware; requests with images do not go further.

    Args:
        app: What answers other requests.
        service: What endpoints share.
        classify: Answers requests with images.
    """

    def __init__(self, app: ASGIApp, service: Service, classify: ClassifyEndpoint) -> None:
        self._app, self._service, self._classify = app, service, classify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        facts = RequestFacts(given if _ID.fullmatch(given) else secrets.token_hex(8))
        facts.attach(scope)
        status = 0

        async def record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = list(message.get("headers", ()))
                present = {name for name, _ in answered}
                answered += [header for header in _HEADERS if header[0] not in present]
                message["headers"] = [*answered, (_REQUEST_ID, facts.id.encode())]
            await send(message)

        try:
            try:
                self._service.access.check_site(scope["method"], headers)
                self._check_room(scope, headers)
                stream = self._classify.stream_of(scope)
                if stream is None:
                    await self._app(scope, receive, record)
                else:
                    response = await self._classify(Request(scope, receive), stream)
                    await response(scope, receive, record)
            except ClientDisconnect:
                await response_for(client_gone(), scope["path"])(scope, receive, record)
            except ApiError as error:
                await response_for(error, scope["path"])(scope, receive, record)
            except Exception:
                REQUEST_LOG.exception("request %s failed", facts.id)
                if not status:
                    failure = ApiError(500, "internal", f"the server failed; its log has request {facts.id}")
                    await response_for(failure, scope["path"])(scope, receive, record)
        finally:
            self._finish(facts, scope["method"], status or 499)

    def _check_room(self, scope: Scope, headers: Headers) -> None:
        """On a connection beyond the most that there may be, answer about health, and owners alone."""
        connection = scope.get(CONNECTION)
        if connection is None or not connection.crowded or scope["path"] in _HEALTH:
            return
        access = self._service.access
        if not access.has_tokens or not access.caller(headers).may(("manage",)):
            raise ApiError(
                503, "too_many_connections", "too many connections; try again later", retry_after=1
            )

    def _finish(self, facts: RequestFacts, method: str, status: int) -> None:
        seconds = time.monotonic() - facts.started
        method = method if method in _METHODS else "other"
        self._service.figures.count(method, facts.route, status, None if facts.route == EVENTS else seconds)
        noted: dict[str, Any] = {
            "request": facts.id,
            "method": method,
            "route": facts.route,
            "status": status,
            "stream": facts.stream,
            "images": facts.images,
            "bytes": facts.nbytes,
            "ms": round(seconds * 1000, 2),
            "token": facts.caller,
        }
        REQUEST_LOG.info("%s", noted, extra={"facts": noted})


# -- errors and description --------------------------------------------------------------------------


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
            parts["schemas"] |= schema.pop("$defs", {}) | {model.__name__: schema}
        app.openapi_schema = document
    return app.openapi_schema


# -- the log ----------------------------------------------------------------------------------------

FORMATS = ("json", "text")
_LOGGERS = ("ramen", "uvicorn")


class JsonLines(logging.Formatter):
    """Each record is a line of JSON; a request's facts are fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        facts = getattr(record, "facts", None)
        line |= {"message": record.getMessage()} if facts is None else facts
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """Each record is a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback if there is one."""
        facts = getattr(record, "facts", None)
        message = record.getMessage() if facts is None else _in_words(facts)
        text = f"{_time(record)} {record.levelname.lower():7} {message}"
        return text + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _in_words(facts: dict[str, Any]) -> str:
    words = f"{facts['method']} {facts['route']} {facts['status']} {facts['ms']} ms"
    named = ("stream", "images", "bytes", "token", "request")
    return words + "".join(f" {name}={facts[name]}" for name in named if facts[name])


def log_to_stderr(form: str) -> None:
    """Send the log of the service, and of the web server, to standard error.

    Args:
        form: "json" or "text".
    """
    checks.choice("log_format", form, FORMATS)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
    logging.getLogger("uvicorn.access").disabled = True  # it has the query string; we have our own
