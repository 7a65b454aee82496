"""Large bodies go from the connection straight into memory of their size.

The way through ASGI copies each piece three times, and stops and restarts the connection for each: more time
than a GPU takes for the images in it.
"""

import asyncio
from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request

RECEIVE_DIRECTLY = "ramen.receive_directly"
Memory = bytearray | memoryview


class DirectBody:
    """A body of known length that is being received.

    Args:
        data: Memory of its length.
    """

    def __init__(self, data: Memory) -> None:
        self.data = data
        self._view, self._filled = memoryview(data), 0
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, part: bytes | bytearray) -> None:
        """The next piece; the parser sees to it that there are not too many bytes."""
        end = self._filled + len(part)
        self._view[self._filled : end] = part
        self._filled = end

    def end(self, *, client_gone: bool = False) -> None:
        """It is complete, or never will be."""
        if self._ended.done():
            return
        if client_gone or self._filled < len(self.data):
            self._ended.set_exception(ClientDisconnect())
        else:
            self._ended.set_result(None)

    async def complete(self) -> Memory:
        """Wait for all of it; ClientDisconnect if the connection ends before that."""
        await self._ended
        return self.data


async def rest_of_body(
    request: Request, start: bytes | bytearray, length: int, memory_for: Callable[[int], memoryview | None]
) -> Memory | None:
    """A whole body whose first piece was received; None if the web server does not hand over the rest.

    Args:
        request: The request.
        start: What was received of its body.
        length: Of the whole body.
        memory_for: Gives memory of that length, if it has to be some in particular.
    """
    receive_directly = request.scope.get(RECEIVE_DIRECTLY)
    if receive_directly is None or len(start) > length:
        return None
    lent = memory_for(length)
    body = DirectBody(bytearray(length) if lent is None else lent)
    body.add(start)
    return await body.complete() if receive_directly(request.scope, body) else None
