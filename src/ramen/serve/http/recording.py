"""Around every request: its id, its log line, its figures, headers for safety, an answer to every failure."""

import logging
import re
import secrets
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramen.serve.http.errors import ApiError, response_for
from ramen.serve.http.request_facts import RequestFacts
from ramen.serve.http.service import Service

REQUEST_LOG = logging.getLogger("ramen.serve.request")
EVENTS = "/v1/events"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class RequestRecorder:
    """An ASGI middleware.

    Args:
        app: What answers.
        service: What routes share.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

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
                answered = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answered.setdefault(name, value)
                answered["X-Request-ID"] = facts.id
            await send(message)

        try:
            try:
                self._service.access.check_site(scope["method"], headers)
                await self._app(scope, receive, record)
            except ApiError as error:
                await response_for(error, scope["path"])(scope, receive, record)
            except Exception:
                REQUEST_LOG.exception("request %s failed", facts.id)
                if not status:
                    failure = ApiError(500, "internal", f"the server failed; its log has request {facts.id}")
                    await response_for(failure, scope["path"])(scope, receive, record)
        finally:
            self._finish(facts, scope["method"], status or 499)

    def _finish(self, facts: RequestFacts, method: str, status: int) -> None:
        seconds = time.monotonic() - facts.started
        method = method if method in _METHODS else "other"
        self._service.metrics.count(method, facts.route, status, None if facts.route == EVENTS else seconds)
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
