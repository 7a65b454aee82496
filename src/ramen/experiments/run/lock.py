"""Locks: no two processes run the same experiment."""

from contextlib import AbstractContextManager
from pathlib import Path

from ramen.utils.file_locks import LockedError as RunningError
from ramen.utils.file_locks import file_lock

__all__ = ["RunningError", "lock"]


def lock(path: Path) -> AbstractContextManager[None]:
    """Hold the lock of the experiment with this result; RunningError if another process holds it."""
    return file_lock(path.with_name(f".{path.stem}.lock"), "is running this experiment", trust_hosts=True)
