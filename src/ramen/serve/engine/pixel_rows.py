"""Pixels of tickets in memory from which the device takes them: each image is put into its row once."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Pixels = NDArray[np.uint8]


class PixelRows:
    """Makes batches ``(n, height, width, 3)`` in uint8.

    Args:
        size: Height and width of the images.
        device: Where they will be used.
        max_batch: The most images in a batch.
    """

    def __init__(self, size: tuple[int, int], device: torch.device, max_batch: int) -> None:
        self._size, self._is_gpu, self._max_batch = size, device.type == "cuda", max_batch

    def empty(self, count: int) -> Tensor:
        """Rows for so many images; for a GPU in pinned memory, unless a larger batch will have a copy.

        New blocks of pinned memory take long to get, so that there should be few.
        """
        pinned = self._is_gpu and 2 * count >= self._max_batch
        return torch.empty((count, *self._size, 3), dtype=torch.uint8, pin_memory=pinned)

    def joined(self, batches: Sequence[Tensor]) -> Tensor:
        """Several batches as one ``(n, 3, height, width)``, which ``normalise`` takes."""
        if len(batches) > 1:
            whole = self.empty(sum(map(len, batches)))
            torch.cat(list(batches), out=whole)
        else:
            (whole,) = batches
        as_channels = whole.permute(0, 3, 1, 2)
        # a GPU changes the order as it normalises; a CPU is slow at that
        return as_channels if self._is_gpu else as_channels.contiguous()


def put_ready(images: Sequence[Pixels], rows: Pixels) -> None:
    """Copy images ``(height, width, 3)`` of the right size into rows.

    Those that follow each other in memory, as they do in the body of a request, are copied at once: each copy
    gives other threads a turn, and has to wait for the next one.
    """
    for start, stop in _runs(images):
        first = images[start]
        strides = (first.nbytes, *first.strides)
        run = np.lib.stride_tricks.as_strided(first, (stop - start, *first.shape), strides)
        np.copyto(rows[start:stop], run)


def _runs(images: Sequence[Pixels]) -> Iterator[tuple[int, int]]:
    """Bounds of runs of images that follow each other in memory."""
    start, expected = 0, -1
    for place, image in enumerate(images):
        address: int = image.__array_interface__["data"][0]
        if place and (address != expected or not image.flags.c_contiguous):
            yield start, place
            start = place
        expected = address + image.nbytes if image.flags.c_contiguous else -1
    if images:
        yield start, len(images)
