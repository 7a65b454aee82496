"""Requests that a full queue refuses are refused by their head, before anything of their body is read.

Under overload most requests end here, and what they cost is taken from those that are answered. So they are
not routed, and their response is put together by hand. Whoever may not send images, or sends what is refused
in any case, gets the same answer as always.
"""

import re

from starlette.datastructures import Headers
from starlette.types import Scope, Send

from ramen.serve.http.access import check_scope, check_stream
from ramen.serve.http.bodies import declared_length
from ramen.serve.http.errors import JSON, ApiError, content_of, from_engine
from ramen.serve.http.image_bodies import RAW_PIXELS, check_content_type, is_one_file
from ramen.serve.http.request_facts import RequestFacts
from ramen.serve.http.schemas import STREAM_PATTERN
from ramen.serve.http.service import Service

CLASSIFY = "/v1/streams/{stream}/classify"
CLASSIFY_SCOPE = "classify"
_PATH = re.compile(CLASSIFY.replace("{stream}", f"({STREAM_PATTERN.strip('^$')})"))


class EarlyRefusal:
    """Says which requests to refuse at once.

    Args:
        service: What routes share.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def reason(self, scope: Scope, headers: Headers, facts: RequestFacts) -> ApiError | None:
        """Why a request is refused; None if it has to be looked at. Other errors of its head are raised.

        Args:
            scope: Of the request.
            headers: Its headers.
            facts: What is noted about it.
        """
        found = _PATH.fullmatch(scope["path"]) if scope["method"] == "POST" else None
        if found is None or self._service.stopping.is_set():
            return None
        stream = found[1]
        refusal = await self._service.backend.refusal(stream, *self._least(headers))
        if refusal is None:
            return None
        facts.route = CLASSIFY
        self._check_head(stream, headers, facts)
        self._service.backend.count_refusal()
        return from_engine(refusal)

    def _least(self, headers: Headers) -> tuple[int, int]:
        """How many images and bytes of images a request has at least, as its head says."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        declared = headers.get("content-length", "")
        known = is_one_file(kind) or kind == RAW_PIXELS
        nbytes = int(declared[:20]) if known and declared.isdecimal() and declared.isascii() else 0
        count = headers.get("x-shape", "").partition(",")[0].strip() if kind == RAW_PIXELS else ""
        images = int(count) if count.isdecimal() and count.isascii() and len(count) < 10 else 1
        return max(1, min(images, self._service.backend.model.max_batch)), nbytes

    def _check_head(self, stream: str, headers: Headers, facts: RequestFacts) -> None:
        """The checks of the route that need no body, in its order."""
        caller = self._service.access.caller(headers)
        facts.caller, facts.stream = caller.name, stream
        check_scope(caller, (CLASSIFY_SCOPE,))
        check_stream(caller, stream)
        declared_length(headers, self._service.settings.max_body_bytes)
        check_content_type(headers)


async def send_refusal(error: ApiError, path: str, common: list[tuple[bytes, bytes]], send: Send) -> None:
    """Send the response for an error with as little work as possible.

    Args:
        error: The error.
        path: Of the request.
        common: Headers that all responses have.
        send: Of the request.
    """
    body, further = content_of(error, path)
    headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode()), *common]
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in further.items()]
    await send({"type": "http.response.start", "status": error.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
