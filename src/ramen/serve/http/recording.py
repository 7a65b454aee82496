"""Around every request: its id, its log line, its figures, headers for safety, an answer to every failure."""

import logging
import re
import secrets
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramen.serve.http.early_refusal import EarlyRefusal, send_refusal
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
_REQUEST_ID = "X-Request-ID"
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]


class RequestRecorder:
    """An ASGI middleware.

    Args:
        app: What answers.
        service: What routes share.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._early = EarlyRefusal(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(_REQUEST_ID, "")
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
                answered[_REQUEST_ID] = facts.id
            await send(message)

        try:
            try:
                self._service.access.check_site(scope["method"], headers)
                refused = await self._early.reason(scope, headers, facts)
                if refused is None:
                    await self._app(scope, receive, record)
                else:
                    status = refused.status_code
                    common = [*_RAW_HEADERS, (_REQUEST_ID.lower().encode(), facts.id.encode())]
                    await send_refusal(refused, scope["path"], common, send)
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
