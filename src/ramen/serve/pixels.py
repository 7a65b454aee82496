"""Pixels of requests on their way to the device: each image is put into its slot once.

A GPU resizes images faster than it gets them, to the same pixels as Pillow. So images of one size, such as
the frames of a camera, are left as they are until they are there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.client.operations import SentImage
from ramen.images.preprocess import Preprocess

Pixels = NDArray[np.uint8]
Size = tuple[int, int]  # height and width

MOST_PIXELS = 2**19  # of an image that is resized on the device: copying larger ones takes too long


@dataclass(frozen=True)
class PixelGroup:
    """Images of one size.

    Attributes:
        pixels: ``(n, height, width, 3)`` in uint8.
        places: Which images of their request they are.
    """

    pixels: Tensor
    places: Sequence[int]


@dataclass(frozen=True)
class DecodedImages:
    """What became of the images of a request.

    Attributes:
        slots: Memory ``(n, bytes)``, in which each image begins its slot.
        sizes: Of the images in the slots; None where there is none.
        errors: Why there is none, by place.
    """

    slots: Pixels
    sizes: Sequence[Size | None]
    errors: Mapping[int, str]

    def groups(self) -> list[PixelGroup]:
        """The images by size, without a copy if all have the same."""
        by_size: dict[Size, list[int]] = {}
        for place, size in enumerate(self.sizes):
            if size is not None:
                by_size.setdefault(size, []).append(place)
        return [PixelGroup(self._group(places, size), places) for size, places in by_size.items()]

    def _group(self, places: Sequence[int], size: Size) -> Tensor:
        slots = self.slots if len(places) == len(self.slots) else self.slots[places]
        return torch.from_numpy(slots[:, : 3 * size[0] * size[1]].reshape(len(places), *size, 3))

    def image(self, place: int) -> Pixels:
        """A copy of one image ``(height, width, 3)``."""
        size = self.sizes[place]
        assert size is not None
        return self.slots[place, : 3 * size[0] * size[1]].reshape(*size, 3).copy()

    @classmethod
    def failed(cls, errors: Sequence[str]) -> "DecodedImages":
        """Images of which none could be decoded."""
        return cls(np.empty((len(errors), 0), np.uint8), [None] * len(errors), dict(enumerate(errors)))


@dataclass(frozen=True)
class PixelRules:
    """Which images are resized where.

    Attributes:
        preprocess: How images are resized.
        max_pixels: The most that an image may have.
        resizes: Whether the device resizes images.
    """

    preprocess: Preprocess
    max_pixels: int = MOST_PIXELS
    resizes: bool = False

    @property
    def size(self) -> Size:
        """That of the encoder."""
        return self.preprocess.size

    def is_resized_later(self, size: Size) -> bool:
        """Whether images of this size are left as they are until they are on the device."""
        return self.resizes and _is_resized_later(self, size)

    def slot_bytes(self, unresized: Size | None) -> int:
        """What an image needs, which has this size or the encoder's."""
        return 3 * max(height * width for height, width in (self.size, unresized or self.size))

    def view(self, images: Sequence[SentImage]) -> DecodedImages | None:
        """Images that need neither be decoded nor copied; None if these have to be."""
        arrays = self.ready(images)
        whole = None if arrays is None else as_one(arrays)
        if whole is None or not whole.flags.writeable:  # torch has no tensors that cannot be written to
            return None
        return DecodedImages(whole.reshape(len(whole), -1), [_size(whole[0])] * len(whole), {})

    def ready(self, images: Sequence[SentImage]) -> list[Pixels] | None:
        """Their pixels, if they have one size that the device takes; None otherwise."""
        arrays = [image.data for image in images if isinstance(image.data, np.ndarray)]
        first = arrays[0] if arrays else None
        if first is None or first.ndim != 3 or first.shape[2] != 3:
            return None
        if len(arrays) < len(images) or any(array.shape != first.shape for array in arrays):
            return None
        size = _size(first)
        fits = size == self.size and size[0] * size[1] <= self.max_pixels
        return arrays if fits or self.is_resized_later(size) else None


@lru_cache(maxsize=256)
def _is_resized_later(rules: PixelRules, size: Size) -> bool:
    if size == rules.size or size[0] * size[1] > min(rules.max_pixels, MOST_PIXELS):
        return False
    return rules.preprocess.resizes_on_devices(size)


def _size(image: Pixels) -> Size:
    return image.shape[0], image.shape[1]


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


class PixelBatches:
    """Makes batches of what requests have.

    Args:
        preprocess: How images are resized.
        device: Where they are used.
    """

    def __init__(self, preprocess: Preprocess, device: torch.device) -> None:
        self._preprocess, self._device = preprocess, device
        # a batch is copied beside the computing of the one before
        self._copying = torch.cuda.Stream(device) if device.type == "cuda" else None

    def blank(self, count: int) -> PixelGroup:
        """So many black images of the encoder's size."""
        return PixelGroup(
            torch.zeros(count, *self._preprocess.size, 3, dtype=torch.uint8, device="cpu"), range(count)
        )

    def on_device(self, requests: Sequence[Sequence[PixelGroup]]) -> Tensor:
        """The images of several requests as one ``(n, 3, height, width)``, resized, on the device."""
        if self._copying is None:
            return torch.cat([self._request(groups) for groups in requests]).contiguous()
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copying):
            parts = [self._request(groups) for groups in requests]
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        current.wait_stream(self._copying)
        whole.record_stream(current)
        return whole

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
        if tuple(images.shape[2:]) == self._preprocess.size:
            return images
        return self._preprocess.pixels(images, device=self._device)
