"""Folders that keep receiving files: each new file is taken once it is complete."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Event

FileState = tuple[int, int]  # time of the last modification in nanoseconds, size


def follow(look: Callable[[], Iterable[str]], interval: float, stop: Event) -> Iterator[str]:
    """New files as they become complete, until ``stop`` is set.

    A file is complete if its size and time stay the same from one look to the next, or if it was not changed
    for an interval when it is first seen: it was there before, or was moved here. An empty file is never
    complete. Files that are complete at the same look come in the order of their times, then of their names.

    Args:
        look: Returns the paths that are there now; those that were taken before may be left out.
        interval: Seconds from one look to the next.
        stop: Ends it.
    """
    taken: set[str] = set()
    growing: dict[str, FileState] = {}
    while not stop.is_set():
        before = time.time_ns() - int(interval * 1e9)
        states = {path: state for path in look() if path not in taken and (state := _state(path))}
        complete = {path for path, state in states.items() if growing.get(path) == state or state[0] < before}
        growing = {path: state for path, state in states.items() if path not in complete}
        for path in sorted(complete, key=lambda path: (states[path][0], path)):
            if stop.is_set():
                return
            taken.add(path)
            yield path
        stop.wait(interval)


def _state(path: str) -> FileState | None:
    """The file's time and size; None if it is empty, or gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size) if status.st_size else None
