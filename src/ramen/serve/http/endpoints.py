"""An endpoint says who may use it; that is checked before anything of a request's body is read."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ramen.client.operations import Operation, ServerError
from ramen.serve.http.bodies import LimitedBody, media_type
from ramen.serve.http.errors import ApiError, from_engine, from_pydantic, is_inference_protocol
from ramen.serve.http.schemas import ErrorJson, OipErrorJson
from ramen.serve.http.service import Service, client_gone, facts_of

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_MEANINGS = {
    400: "The body is malformed.",
    401: "A token is missing, or not valid.",
    403: "The token lacks the scope, or is not valid for this stream; or another site sent the request.",
    404: "There is no such thing.",
    409: "In conflict with what is there.",
    413: "The body is too large.",
    415: "The content type, or a compressed body, is not accepted.",
    422: "The request makes no sense; the message says what is expected.",
    429: "Too much is waiting: try again after `Retry-After` seconds.",
    500: "The server failed; the message names the request in its log.",
    503: "The server is being stopped, or is not ready. With the code `answer_lost`: the process that worked "
    "on the request has ended, and may have carried it out.",
    504: "Not answered in time; nothing was learned from the images.",
}
_OF_ANY_BODY = (400, 413, 415, 422, 429, 504)


def needs(*scopes: str) -> Callable[[Endpoint], Endpoint]:
    """Mark an endpoint: callers need a token with one of these scopes; with any, if there are none."""

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.needed = scopes  # type: ignore[attr-defined]
        return endpoint

    return mark


def open_to_all(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint: no token is needed."""
    endpoint.needed = None  # type: ignore[attr-defined]
    return endpoint


def errors(*statuses: int, model: type[BaseModel] = ErrorJson) -> dict[int | str, dict[str, Any]]:
    """What may go wrong, for the API's description, which must have the model among its components."""
    documented: dict[int | str, dict[str, Any]] = {}
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    for status in statuses:
        documented[status] = {"content": content, "description": _MEANINGS[status]}
        if status in (429, 503):
            documented[status]["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
            }
        if status == 401:
            documented[status]["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return documented


def serves(
    app: FastAPI, operation: type[Operation[Any]], tag: str, **options: Any
) -> Callable[[Endpoint], Endpoint]:
    """Make an endpoint that of an operation, whose path, scopes, errors and description it takes over."""
    method, path = operation.http
    responses = errors(*operation.errors) | options.pop("responses", {})

    def add(endpoint: Endpoint) -> Endpoint:
        endpoint.__doc__ = endpoint.__doc__ or operation.__doc__
        endpoint.needed = operation.scopes  # type: ignore[attr-defined]
        app.add_api_route(
            path, endpoint, methods=[method], tags=[tag], responses=responses, name=operation.name, **options
        )
        return endpoint

    return add


class GuardedRoute(APIRoute):
    """A route whose endpoint is marked with ``needs`` or ``open_to_all``."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.needed: tuple[str, ...] | None = endpoint.needed  # type: ignore[attr-defined]
        extra = dict(options.get("openapi_extra") or {})
        responses = dict(options.get("responses") or {})
        model = OipErrorJson if is_inference_protocol(path) else ErrorJson
        others = [403, 500] if self.needed is None else [401, 403, 500, 503]
        takes_body = extra.pop("takes_body", False) or "requestBody" in extra
        others += _OF_ANY_BODY if takes_body else []
        if self.needed is not None:
            listed = " or ".join(f"`{scope}`" for scope in self.needed)
            extra["security"] = [{"token": []}]
            extra["x-scopes"] = list(self.needed)
            scope = f"Needs a token with the scope {listed}." if listed else "Needs a token, with any scope."
            options["description"] = f"{endpoint.__doc__ or ''}\n\n{scope}"
        options["responses"] = errors(*others, model=model) | responses
        options["openapi_extra"] = extra
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Check the caller, limit the body, then do what any route does; errors are ours."""
        handle = super().get_route_handler()
        takes_json = self.body_field is not None

        async def guarded(request: Request) -> Response:
            service: Service = request.app.state.service
            settings = service.settings
            facts_of(request).route = self.path
            if self.needed is not None:
                service.authorize(request, self.needed, request.path_params.get("stream"))
            try:
                if takes_json:
                    _check_is_json(request)
                most = settings.max_json_bytes if takes_json else settings.max_body_bytes
                with LimitedBody(request, min(most, settings.max_body_bytes), service).admitted() as limited:
                    return await handle(limited)
            except ServerError as error:
                raise from_engine(error) from error
            except RequestValidationError as error:
                raise from_pydantic(error) from None
            except ClientDisconnect:
                raise client_gone() from None

        return guarded


def _check_is_json(request: Request) -> None:
    """415 for a body of another type; no body at all may be fine."""
    headers = request.headers
    kind = media_type(headers)
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if kind != "application/json" and (kind or has_body):
        raise ApiError(415, "content_type", f"Content-Type must be application/json, got {kind!r}")
