"""Silence for Pillow's warnings while it decodes, for any number of threads.

Pillow warns of odd metadata and of large images. Whoever decodes here gets an image or an error instead.
"""

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_FROM_PILLOW = r"PIL\b"
_lock = threading.Lock()
_inside = 0  # threads that are in such a block
_outer = ExitStack()  # the filters as they were before the first of them


@contextmanager
def no_pillow_warnings() -> Iterator[None]:
    """Ignore warnings that come from Pillow's modules; all others pass, also those of other threads.

    Python's filters belong to the whole process. Threads that saved and restored them on their own could
    restore those of each other, so the first one to enter saves them and the last one to leave restores them.
    """
    if getattr(sys.flags, "context_aware_warnings", False):  # each thread has its own
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=_FROM_PILLOW)
            yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside
    with _lock:
        if _inside == 0:
            _outer.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=_FROM_PILLOW)
        _inside += 1


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if _inside == 0:
            _outer.close()
