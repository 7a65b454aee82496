"""How the web server reads requests: as uvicorn does, but the rest of a large body can be taken over.

Needs httptools; without it, all bodies come in pieces.
"""

from typing import cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ramen.serve.http.direct_bodies import RECEIVE_DIRECTLY, DirectBody


class DirectBodyProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which hands over the rest of a body to whoever asks for it."""

    _direct: DirectBody | None = None

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._direct = None
        cast("Scope", self.scope)[RECEIVE_DIRECTLY] = self._receive_directly

    def _receive_directly(self, scope: Scope, body: DirectBody) -> bool:
        """Put all that is still to come of the request into ``body``; False if that is not possible."""
        cycle = self.cycle
        if cycle is None or cycle.scope is not scope or cycle.disconnected or not cycle.more_body:
            return False
        body.add(cycle.body)
        cycle.body = bytearray()
        self._direct = body
        self.flow.resume_reading()
        return True

    def on_body(self, body: bytes) -> None:
        """A piece of a body has come."""
        if self._direct is None or self.cycle.response_complete:
            super().on_body(body)
        else:
            self._direct.add(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        super().on_message_complete()
        if self._direct is not None:
            self._direct.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone away."""
        super().connection_lost(exc)
        if self._direct is not None:
            self._direct.end(client_gone=True)
