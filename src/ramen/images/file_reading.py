"""The bytes of a file, read safely: regular files alone, and never more than allowed."""

import os
import stat
from typing import Any

from ramen.utils.byte_sizes import readable_bytes


def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """All bytes of a regular file; ValueError if it is something else or has more than ``max_bytes``."""
    _check_is_file(os.stat(path))  # before it is opened, which is already an action for some devices
    # Without waiting for a writer, should it have become a FIFO meanwhile.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        _check_is_file(status)
        check_bytes(status.st_size, max_bytes)
        return read_object(file, max_bytes)


def _check_is_file(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ValueError("it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")


def check_bytes(count: int, max_bytes: int) -> None:
    """ValueError if ``count`` is more than ``max_bytes``."""
    if count > max_bytes:
        raise ValueError(f"it has {readable_bytes(count)}, more than {readable_bytes(max_bytes)}")


def read_object(file: Any, max_bytes: int) -> bytes:
    """All bytes of a file object; no more than one beyond ``max_bytes`` is ever read."""
    if getattr(file, "seekable", lambda: False)():
        file.seek(0)
    parts: list[bytes] = []
    missing = max_bytes + 1
    while missing > 0 and (part := file.read(missing)):
        if not isinstance(part, bytes | bytearray | memoryview):
            raise TypeError(f"its file must be opened in binary mode, but it gave {type(part).__name__}")
        parts.append(bytes(part))
        missing -= len(part)
    if missing <= 0:
        raise ValueError(f"it has more than {readable_bytes(max_bytes)}")
    return b"".join(parts)
