"""Errors as clients see them: a status, a code for programs, a message for people."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response

from ramen.client.operations import ServerError, StoppingError

_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}
_MOST_COMPLAINTS = 3  # that are listed of a body that is wrong in many places
JSON = "application/json"
_LONGEST_MESSAGE = 1000  # characters; a message may quote what was sent


class ApiError(HTTPException):
    """A request that is not answered as it hoped.

    Args:
        status: The status of the response.
        code: Which error it is, for programs.
        message: What was wrong and what is expected, for people.
        retry_after: Seconds after which it is worth trying again.
        headers: Further headers of the response.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code
        self.retry_after = retry_after


def from_engine(error: ServerError) -> ApiError:
    """The engine's error for clients."""
    retry_after = error.retry_after
    if isinstance(error, StoppingError):
        retry_after = 1.0  # another server, or this one once it is back
    return ApiError(error.status or 500, error.code or "internal", error.message, retry_after=retry_after)


def from_pydantic(error: ValidationError | RequestValidationError) -> ApiError:
    """What a request has wrong, in words; its values are not repeated."""
    if isinstance(error, ValidationError):
        found: Sequence[Any] = error.errors(include_url=False, include_input=False, include_context=False)
    else:
        found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        return ApiError(400, "bad_request", "the body is not valid JSON")
    return ApiError(422, "invalid", in_words(found))


def in_words(found: Sequence[Mapping[str, Any]]) -> str:
    """What pydantic complains about, as one line.

    >>> in_words([{"loc": ("body", "labels", 0, "id"), "msg": "Field required"}])
    'body.labels.0.id: Field required'
    """
    listed = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}".lstrip(": ") for one in found]
    more = len(listed) - _MOST_COMPLAINTS
    return "; ".join(listed[:_MOST_COMPLAINTS]) + (f"; and {more} more" if more > 0 else "")


def from_http(error: StarletteHTTPException) -> ApiError:
    """An error of the web framework: no such path, no such method."""
    if isinstance(error, ApiError):
        return error
    code = _CODES.get(error.status_code, "refused")
    message = {404: "there is nothing at this path", 405: "this path does not take this method"}.get(
        error.status_code, str(error.detail)
    )
    return ApiError(error.status_code, code, message, headers=error.headers)


def response_for(error: ApiError, path: str) -> Response:
    """The response; the Open Inference Protocol has a form of its own.

    Args:
        error: The error.
        path: Of the request.
    """
    body, headers = content_of(error, path)
    return Response(body, error.status_code, headers, JSON)


def content_of(error: ApiError, path: str) -> tuple[bytes, dict[str, str]]:
    """Body and further headers of the response for an error."""
    message = str(error.detail)
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "..."
    body: dict[str, Any] = {"code": error.code, "message": message}
    headers = dict(error.headers or {})
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
        body["retry_after_ms"] = max(1, math.ceil(error.retry_after * 1000))
    content = {"error": message if is_inference_protocol(path) else body}
    # In ASCII: a message may quote what is no valid Unicode text.
    return json.dumps(content).encode("ascii"), headers


def is_inference_protocol(path: str) -> bool:
    """Whether a path belongs to the Open Inference Protocol."""
    return path == "/v2" or path.startswith("/v2/")
