"""Memory that processes of one service share: what one of them puts there, the others need not be sent.

A region is made before the processes that use it are spawned, and is handed to them as they are. It lives as
long as one of them does, and has no name that anybody else could open.
"""

import ctypes
import mmap
import os
import tempfile
import threading
import weakref
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 4096  # bytes: blocks have pages of their own
Bytes = NDArray[np.uint8]


class SharedRegion:
    """So many bytes, of which only those take memory that were written to.

    Args:
        size: In bytes.

    Attributes:
        address: Where it begins, in this process.
    """

    def __init__(self, size: int) -> None:
        self._attach(_unnamed_file(size), size)

    def _attach(self, descriptor: int, size: int) -> None:
        self._descriptor, self.size = descriptor, size
        self._map = mmap.mmap(descriptor, size)
        self._whole = (ctypes.c_uint8 * size).from_buffer(self._map)
        self.address = ctypes.addressof(self._whole)
        weakref.finalize(self, os.close, descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (reduction.DupFd(self._descriptor), self.size)

    def bytes_at(self, offset: int, length: int, when_gone: Callable[[], object] | None = None) -> Bytes:
        """A part of the region; ValueError if it is not within it.

        Args:
            offset: Where it begins.
            length: How many bytes it has.
            when_gone: Called when this array and all views of it are gone, in whichever thread that happens.
        """
        if not (offset >= 0 and length >= 0 and offset + length <= self.size):
            raise ValueError(f"{length} bytes at {offset} are not within a region of {self.size} bytes")
        memory: Any = (ctypes.c_uint8 * length).from_buffer(self._map, offset)
        if when_gone is not None:  # views keep the memory alive, not the array that they were made of
            weakref.finalize(memory, when_gone).atexit = False
        array: Bytes = np.frombuffer(memory, np.uint8)
        return array

    def offset_of(self, array: NDArray[Any]) -> int | None:
        """Where in the region an array without gaps is; None if it is not there."""
        offset: int = array.__array_interface__["data"][0] - self.address
        is_here = offset >= 0 and offset + array.nbytes <= self.size and array.flags.c_contiguous
        return offset if is_here else None


def _attached(descriptor: Any, size: int) -> SharedRegion:
    region = SharedRegion.__new__(SharedRegion)
    region._attach(descriptor.detach(), size)
    return region


def _unnamed_file(size: int) -> int:
    if hasattr(os, "memfd_create"):  # not limited by the size of /dev/shm, which is small in containers
        descriptor = os.memfd_create("ramen")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Lender:
    """Lends parts of a region, which come back when nobody has them any more; several threads may ask.

    One process lends of a region.

    Args:
        region: The region.
    """

    def __init__(self, region: SharedRegion) -> None:
        self.region = region
        self._lock = threading.Lock()
        self._free = [(0, region.size)]  # offsets and lengths, by offset
        self._lent: dict[int, int] = {}
        self._returned: deque[int] = deque()  # offsets that are not free yet

    @property
    def lent_bytes(self) -> int:
        """What is not free."""
        with self._lock:
            self._take_back()
            return sum(self._lent.values())

    def lend(self, length: int) -> Bytes | None:
        """So many bytes, until this array and all views of it are gone; None if there is no room."""
        offset = self._take(max(1, length))
        if offset is None:
            return None
        # appending takes no lock: memory may be given back at any moment
        return self.region.bytes_at(offset, length, partial(self._returned.append, offset))

    def _take(self, length: int) -> int | None:
        needed = -(-length // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            self._take_back()
            for place, (offset, free) in enumerate(self._free):
                if free >= needed:
                    self._free[place : place + 1] = [(offset + needed, free - needed)] * (free > needed)
                    self._lent[offset] = needed
                    return offset
        return None

    def _take_back(self) -> None:
        if not self._returned:
            return
        while self._returned:
            offset = self._returned.popleft()
            insort(self._free, (offset, self._lent.pop(offset)))
        self._free = _joined(self._free)


def _joined(free: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours as one."""
    whole: list[tuple[int, int]] = []
    for offset, length in free:
        if whole and sum(whole[-1]) == offset:
            whole[-1] = whole[-1][0], whole[-1][1] + length
        else:
            whole.append((offset, length))
    return whole


class SharedRegions:
    """Regions that several processes know by their numbers.

    Args:
        regions: In the same order everywhere.
    """

    def __init__(self, regions: Sequence[SharedRegion]) -> None:
        self._regions = tuple(regions)

    def place_of(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """The number of the region that an array is in, and its offset there; None if it is in none."""
        for number, region in enumerate(self._regions):
            offset = region.offset_of(array)
            if offset is not None:
                return number, offset
        return None

    def array_at(self, place: tuple[int, int], shape: Sequence[int]) -> Bytes:
        """The array of uint8 at such a place."""
        number, offset = place
        return self._regions[number].bytes_at(offset, int(np.prod(shape))).reshape(tuple(shape))
