"""Python's garbage collector in programs that must not stop for a moment."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_out_of_collections() -> Iterator[None]:
    """A block in which garbage collections leave out all objects that were there before it.

    For a service that has started. What a model and its libraries consist of never becomes garbage, but
    looking through it takes a third of a second, in which nothing is answered. Afterwards all is as before:
    some libraries report what is not collected when Python ends.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
