"""Messages between a front and the engine, on a pair of sockets.

A front sends JSON: it reads what strangers send, and is not to be trusted with more. The engine, which has
started it, sends Python's own objects.
"""

import asyncio
import json
from multiprocessing.reduction import ForkingPickler
from typing import Any

_LENGTH = 8  # bytes that say how long a message is
_MOST = 2**30  # bytes


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next message; None if the other side has gone."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH))
        if length > _MOST:
            raise ValueError(f"a message must have at most {_MOST} bytes, got {length}")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def write_frame(writer: asyncio.StreamWriter, message: bytes | memoryview) -> None:
    """Send a message; nothing happens if the other side has gone."""
    if not writer.is_closing():
        writer.write(len(message).to_bytes(_LENGTH))
        writer.write(message)


def as_json(message: Any) -> bytes:
    """A message of a front."""
    return json.dumps(message).encode()


def as_objects(message: Any) -> memoryview:
    """A message of the engine; for ``objects_in`` alone, in a process that the engine has started."""
    return ForkingPickler.dumps(message)


def objects_in(message: bytes) -> Any:
    """What the engine has sent."""
    return ForkingPickler.loads(message)
