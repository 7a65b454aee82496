"""Locks: no two processes run the same experiment."""

from contextlib import AbstractContextManager
from pathlib import Path

from ramen.utils.file_locks import LockedError as RunningError
from ramen.utils.file_locks import file_lock

__all__ = ["RunningError", "lock"]


def lock(path: Path, owner: str | None = None) -> AbstractContextManager[None]:
    """Hold the lock of the experiment with this result; RunningError if another process holds it.

    Args:
        path: The result.
        owner: Who runs the experiment, possibly again: a lock that a host left behind when it died does not
            keep the same owner out.
    """
    file = path.with_name(f".{path.stem}.lock")
    return file_lock(file, "is running this experiment", trust_hosts=True, owner=owner)
