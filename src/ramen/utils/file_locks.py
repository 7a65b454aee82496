"""Locks between processes that end with the process that holds them, however it ends."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ramen.utils.atomic_files import make_folder


class LockedError(RuntimeError):
    """Another process holds a lock."""


@contextmanager
def file_lock(
    file: Path, doing: str, *, trust_hosts: bool = False, owner: str | None = None
) -> Iterator[None]:
    """Hold the lock that ``file`` stands for; LockedError if another process holds it.

    The system releases the lock when a process ends.

    Args:
        file: Created if it is missing, and removed at the end.
        doing: What the holder does, for the message: "is running this experiment".
        trust_hosts: Also respect a file that names another host, even if it is not locked here: not every
            shared folder passes locks on between hosts.
        owner: Whoever holds the lock, in one process after the other, perhaps on several hosts. It knows that
            its earlier process has ended: the name of that process's host does not keep it out.
    """
    make_folder(file.parent)
    handle = _acquire(file, doing, trust_hosts, owner)
    try:
        holder = {"pid": os.getpid(), "host": socket.gethostname()}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder if owner is None else {**holder, "owner": owner}).encode(), 0)
        yield
    finally:
        file.unlink(missing_ok=True)  # still locked: whoever has just opened it sees that it is gone
        os.close(handle)


def _acquire(file: Path, doing: str, trust_hosts: bool, owner: str | None) -> int:
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(handle)
            os.close(handle)
            who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
            raise LockedError(f"{who} {doing} ({file}): wait for it, or stop it") from None
        holder = _holder(handle)
        elsewhere = holder.get("host", socket.gethostname()) != socket.gethostname()
        if trust_hosts and elsewhere and (owner is None or holder.get("owner") != owner):
            os.close(handle)
            who = f"process {holder.get('pid', '?')} on {holder['host']}"
            raise LockedError(f"{who} {doing}; if it has ended, remove {file}")
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


def _holder(handle: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}
