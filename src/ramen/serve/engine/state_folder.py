"""A state folder has one owner: a service, or one of its shards, which has it locked while it runs.

    state/lock                           of a service with one engine; shards hold it while they start
    state/streams/camera-1/              its streams
    state/shards/2-of-3/lock, streams/   of the second of three shards

Where a stream is, its name says. A service that starts with another number of shards than the last one moves
the streams, one rename each, so that it may be killed at any time.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from ramen.client.operations import STREAM_PATTERN
from ramen.utils.files import LockedError, file_lock, make_folder

STREAMS = "streams"
_SHARDS = "shards"
_LOCK = "lock"
_OWNER = "serves the streams of this state folder"
_STREAM_USER = "uses a stream that must be moved"
_PAUSE = 0.1  # seconds between looks whether a lock is free
Value = TypeVar("Value")

_log = logging.getLogger("ramen")


def shard_of(stream: str, shards: int) -> int:
    """Which of so many shards a stream belongs to, from 0 on.

    >>> [shard_of(f"camera-{number}", 3) for number in range(6)]
    [2, 0, 2, 2, 2, 2]
    """
    return int.from_bytes(blake2b(stream.encode(), digest_size=8).digest()) % shards


@contextmanager
def owned(root: Path, shard: int = 0, shards: int = 1) -> Iterator[Path]:
    """The folder of one of so many shards: all its streams are there, and nobody else uses it meanwhile.

    Raises:
        LockedError: Somebody else has it, or has streams that must be moved.
    """
    with ExitStack() as own:
        with ExitStack() as starting:
            starting.enter_context(file_lock(root / _LOCK, _OWNER))
            _move_streams(root, shards)
            folder = _folder_of(root, shard, shards)
            if folder == root:
                own.push(starting.pop_all())
            else:
                own.enter_context(file_lock(folder / _LOCK, _OWNER))
        yield folder


def when_free(make: Callable[[], Value], seconds: float) -> Value:
    """The result of ``make``, as soon as nobody else has what it locks; LockedError if that takes longer."""
    until = time.monotonic() + seconds
    while True:
        try:
            return make()
        except LockedError:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE)


def stream_names(folder: Path) -> list[str]:
    """Of the streams in the folder of a shard."""
    streams = folder / STREAMS
    names = [path.name for path in streams.iterdir()] if streams.is_dir() else []
    return sorted(name for name in names if re.fullmatch(STREAM_PATTERN, name))


def _folder_of(root: Path, shard: int, shards: int) -> Path:
    return root if shards == 1 else root / _SHARDS / f"{shard + 1}-of-{shards}"


def _move_streams(root: Path, shards: int) -> None:
    """Move all streams to where they belong now; the caller has the lock of the root.

    A shard that runs has its lock, and has seen that no folder of another number of shards is left. So none
    of these can be in use, and nothing is moved into a folder that is.
    """
    own = [_folder_of(root, shard, shards) for shard in range(shards)]
    others = {root, *(root / _SHARDS).glob("*-of-*")} - set(own)
    with ExitStack() as locks:
        for folder in sorted(others - {root}):
            locks.enter_context(file_lock(folder / _LOCK, _OWNER))
        found = [(folder, name) for folder in sorted(others) for name in stream_names(folder)]
        for folder in own if found else ():
            make_folder(folder / STREAMS)
            if folder != root:
                locks.enter_context(file_lock(folder / _LOCK, _OWNER))
        for folder, name in found:
            with file_lock(folder / STREAMS / name / _LOCK, _STREAM_USER):
                pass  # nobody has this stream: a service of version 0.2 locks streams, and not their folder
            os.rename(folder / STREAMS / name, own[shard_of(name, shards)] / STREAMS / name)
    if found:
        _log.info("moved %d streams to where they belong with %d engines", len(found), shards)
    for folder in others:
        for empty in (folder / STREAMS, folder, root / _SHARDS):
            with suppress(OSError):  # it is not empty
                empty.rmdir()
