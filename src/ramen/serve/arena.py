"""Memory that processes of one service share: what one of them puts there, the others need not be sent.

A region is made before the processes that use it start, and is handed to them as they are. It lives as long
as one of them does, and has no name that anybody else could open.
"""

import contextlib
import ctypes
import logging
import mmap
import os
import tempfile
import weakref
from bisect import insort
from collections import deque
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 4096  # bytes: blocks have pages of their own
Bytes = NDArray[np.uint8]
_log = logging.getLogger("ramen")


class SharedRegion:
    """So many bytes, of which only those take memory that were written to.

    Args:
        size: In bytes.
    """

    def __init__(self, size: int) -> None:
        self._attach(_unnamed_file(size), size)

    def _attach(self, descriptor: int, size: int) -> None:
        self._descriptor, self.size = descriptor, size
        self._map = mmap.mmap(descriptor, size)
        self.address: int = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        weakref.finalize(self, os.close, descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (reduction.DupFd(self._descriptor), self.size)

    def bytes_at(self, offset: int, length: int) -> Bytes:
        """A part of the region; ValueError if it is not within it."""
        if not (offset >= 0 and length >= 0 and offset + length <= self.size):
            raise ValueError(f"{length} bytes at {offset} are not within a region of {self.size} bytes")
        return np.frombuffer(self.memory_at(offset, length), np.uint8)

    def memory_at(self, offset: int, length: int) -> Any:
        """The same as an object that all views of it keep alive."""
        return (ctypes.c_uint8 * length).from_buffer(self._map, offset)

    def offset_of(self, array: NDArray[Any]) -> int | None:
        """Where in the region an array without gaps is; None if it is not there."""
        offset: int = array.__array_interface__["data"][0] - self.address
        is_here = offset >= 0 and offset + array.nbytes <= self.size and array.flags.c_contiguous
        return offset if is_here else None

    def pin(self, nbytes: int, device: torch.device) -> None:
        """Let a GPU take the first bytes by itself, for good; they are taken at once.

        From memory that is not pinned, the driver first copies images to some that is: 100 photographs of
        56 MB take 8 ms, in which the thread that feeds the GPU waits. If the system does not allow it, that
        is logged.
        """
        runtime = torch.cuda.cudart()
        with torch.cuda.device(device):
            error = runtime.cudaHostRegister(self.address, min(nbytes, self.size), 0)
        if int(error):
            reason = runtime.cudaGetErrorString(error)
            _log.warning("%d bytes for images could not be pinned: copies take longer: %s", nbytes, reason)
            with contextlib.suppress(RuntimeError):  # CUDA reports it once more: better here than later
                torch.zeros(1, device=device)


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


class Arena:
    """Lends parts of a region, which come back when nobody has them any more; one thread asks.

    One process lends of a region. It lends the first bytes that are free, which are pinned if some are.

    Args:
        region: The region.
    """

    def __init__(self, region: SharedRegion) -> None:
        self.region = region
        self._free = [(0, region.size)]  # offsets and lengths, by offset
        self._lent: dict[int, int] = {}
        self._returned: deque[int] = deque()  # offsets that are not free yet

    @property
    def lent_bytes(self) -> int:
        """What is not free."""
        self._take_back()
        return sum(self._lent.values())

    def lend(self, length: int) -> Bytes | None:
        """So many bytes, until this array and all views of it are gone; None if there is no room."""
        needed = -(-max(1, length) // _ALIGNMENT) * _ALIGNMENT
        self._take_back()
        for place, (offset, free) in enumerate(self._free):
            if free >= needed:
                self._free[place : place + 1] = [(offset + needed, free - needed)] * (free > needed)
                self._lent[offset] = needed
                return self._block(offset, length)
        return None

    def _block(self, offset: int, length: int) -> Bytes:
        memory = self.region.memory_at(offset, length)
        # views keep the memory alive, and not the array that they were made of; they may go in any thread
        weakref.finalize(memory, self._returned.append, offset).atexit = False
        return np.frombuffer(memory, np.uint8)

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
