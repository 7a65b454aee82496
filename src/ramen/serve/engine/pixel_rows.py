"""Pixels of requests, in memory from which the device takes them: each image is put there once.

A GPU resizes images faster than it gets them, to the same pixels as Pillow. So images of one size, such as
the frames of a camera, are left as they are until they are there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.client.operations import SentImage
from ramen.images.preprocess import Preprocess
from ramen.serve.engine.staging import Staging
from ramen.serve.shared_memory import Lender

Pixels = NDArray[np.uint8]
Size = tuple[int, int]  # height and width

MOST_PIXELS = 2**19  # of an image that is resized on the device: copying larger ones takes too long


@dataclass(frozen=True)
class PixelGroup:
    """Images of one size.

    Attributes:
        pixels: ``(n, height, width, 3)`` in uint8.
        places: Which images of their request they are, among those that could be decoded.
    """

    pixels: Tensor
    places: Sequence[int]


class PixelRows:
    """Makes memory for images, and batches of what was put there.

    Args:
        preprocess: How images are resized.
        device: Where they will be used.
        lenders: Of memory that other processes write to, the best first; none for that of this process.
        max_batch: The most images of a batch.
        max_pixels: The most that an image may have.
        resizes: Whether the device resizes images; by default a GPU does.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        device: torch.device,
        lenders: Sequence[Lender] = (),
        *,
        max_batch: int = 1,
        max_pixels: int = MOST_PIXELS,
        resizes: bool | None = None,
    ) -> None:
        self.size: Size = preprocess.size
        self._preprocess, self._device, self._lenders = preprocess, device, tuple(lenders)
        self._most = min(max_pixels, MOST_PIXELS)
        self._may_view = self.size[0] * self.size[1] <= max_pixels
        self._resizes = device.type == "cuda" if resizes is None else resizes
        # a batch is copied beside the computing of the one before
        self._copying = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._staging = Staging((max_batch, *self.size, 3), device)
        self.is_resized_later = lru_cache(maxsize=256)(self._is_resized_later)

    def _is_resized_later(self, size: Size) -> bool:
        """Whether images of this size are left as they are until they are on the device."""
        if not self._resizes or size == self.size or size[0] * size[1] > self._most:
            return False
        return self._preprocess.resizes_on_devices(size)

    # -- in -----------------------------------------------------------------------------------------

    def slots(self, count: int, size: Size | None) -> Pixels | None:
        """Memory ``(count, bytes)`` for images; None if they have to wait for others that give theirs back.

        Args:
            count: How many images.
            size: That they probably have, if images of this size are resized later.
        """
        nbytes = 3 * max(height * width for height, width in (self.size, size or self.size))
        if not self._lenders:
            return np.empty((count, nbytes), np.uint8)
        offered = (lender.lend(count * nbytes) for lender in self._lenders)
        lent = next((memory for memory in offered if memory is not None), None)
        return None if lent is None else lent.reshape(count, nbytes)

    def view_of(self, images: Sequence[SentImage]) -> Tensor | None:
        """Images ``(n, h, w, 3)`` that need neither be decoded nor copied; None if these have to be."""
        ready = [
            image.data for image in images if isinstance(image.data, np.ndarray) and image.data.ndim == 3
        ]
        if len(ready) < len(images):
            return None
        height, width, channels = ready[0].shape
        is_ready = self._may_view if (height, width) == self.size else self.is_resized_later((height, width))
        whole = as_one(ready) if channels == 3 and is_ready else None
        return torch.from_numpy(whole) if whole is not None and whole.flags.writeable else None

    def blank(self, count: int) -> PixelGroup:
        """So many black images of the encoder's size."""
        return PixelGroup(torch.zeros(count, *self.size, 3, dtype=torch.uint8, device="cpu"), range(count))

    # -- out ----------------------------------------------------------------------------------------

    def on_device(self, requests: Sequence[Sequence[PixelGroup]]) -> Tensor:
        """The images of several requests as one ``(n, 3, height, width)``, resized, on the device."""
        if self._copying is None:
            return torch.cat([self._request(groups) for groups in requests]).contiguous()
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copying):
            if len(requests) > 1 and all(self._is_plain(groups) for groups in requests):
                whole = self._staging.copy([groups[0].pixels for groups in requests]).permute(0, 3, 1, 2)
            else:
                parts = [self._request(groups) for groups in requests]
                whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        current.wait_stream(self._copying)
        whole.record_stream(current)
        return whole

    def _is_plain(self, groups: Sequence[PixelGroup]) -> bool:
        return len(groups) == 1 and tuple(groups[0].pixels.shape[1:3]) == self.size

    def _request(self, groups: Sequence[PixelGroup]) -> Tensor:
        # A GPU reads pinned memory while the host goes on; requests keep theirs until they are answered.
        copied = [group.pixels.to(self._device, non_blocking=True) for group in groups]
        parts = [self._resized(pixels.permute(0, 3, 1, 2)) for pixels in copied]
        if len(parts) == 1:
            return parts[0]
        whole = torch.cat(parts)
        order = torch.tensor([place for group in groups for place in group.places], device="cpu").argsort()
        return whole[order.to(self._device)]

    def _resized(self, images: Tensor) -> Tensor:
        if tuple(images.shape[2:]) == self.size:
            return images
        return self._preprocess.pixels(images, device=self._device)


def as_one(images: Sequence[Pixels]) -> Pixels | None:
    """Images ``(h, w, 3)`` of one size that follow each other in an array as a view of it; None if not.

    So it is with the pixels in the body of a request.
    """
    first = images[0]
    start: int = first.__array_interface__["data"][0]
    for place, image in enumerate(images):
        is_next = image.__array_interface__["data"][0] == start + place * first.nbytes
        is_alike = image.shape == first.shape and image.base is first.base and image.flags.c_contiguous
        if not (is_next and is_alike):
            return None
    shape, strides = (len(images), *first.shape), (first.nbytes, *first.strides)
    return np.lib.stride_tricks.as_strided(first, shape, strides)
