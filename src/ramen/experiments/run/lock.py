"""Locks: no two processes run the same experiment, or write the same file."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class RunningError(RuntimeError):
    """Another process is running this experiment, or writing this file."""


@contextmanager
def lock(path: Path, doing: str = "running this experiment") -> Iterator[None]:
    """Hold the lock of the experiment with this result; RunningError if another process holds it.

    The system releases the lock when a process ends, however it ends. A lock file that names another host is
    trusted, because not every shared folder passes locks on between hosts.

    Args:
        path: The result; the lock is a hidden file beside it.
        doing: What the holder does, for the message.
    """
    file = path.with_name(f".{path.stem}.lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquire(file, doing)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        yield
    finally:
        file.unlink(missing_ok=True)  # still locked: whoever has just opened it sees that it is gone
        os.close(handle)


def _acquire(file: Path, doing: str) -> int:
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(handle)
            os.close(handle)
            who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
            raise RunningError(f"{who} is {doing} ({file}): wait for it, or stop it") from None
        owner = _owner(handle)
        if owner.get("host", socket.gethostname()) != socket.gethostname():
            os.close(handle)
            raise RunningError(
                f"process {owner.get('pid', '?')} on {owner['host']} is {doing}; "
                f"if it has ended, remove {file}"
            )
        if _is_same_file(handle, file):
            return handle
        os.close(handle)  # its last owner removed it in the meantime


def _is_same_file(handle: int, file: Path) -> bool:
    try:
        there = file.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_ino, own.st_dev) == (there.st_ino, there.st_dev)


def _owner(handle: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}
