"""Images kept beside a memory that decides, by slot numbers alone, which of them stay."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ramen.memory.stream_memory import expect, expect_finite


class ImageStore:
    """Up to ``capacity`` images of one size; slots fill from the first one on and are then overwritten.

    Args:
        capacity: How many.
        dtype: How they are stored; the encoder's own type loses nothing that the encoder would see.
        device: Where.
        size: Height and width; those of the first images if not given.
    """

    def __init__(
        self, capacity: int, dtype: torch.dtype, device: torch.device, size: tuple[int, int] | None
    ) -> None:
        self.capacity, self.dtype, self.device = capacity, dtype, device
        self._given_size = self._size = size
        self._images: Tensor | None = None  # there once an image has come
        self._filled = 0

    def __len__(self) -> int:
        return self._filled

    @property
    def images(self) -> Tensor:
        """The stored images, ``(len, 3, H, W)``; not a copy."""
        if self._images is None:
            return torch.empty(0, 3, *(self._size or (0, 0)), dtype=self.dtype, device=self.device)
        return self._images[: self._filled]

    def check(self, images: Tensor) -> None:
        """Raise ValueError unless ``images`` have the size of those that are kept."""
        if self._size is not None and tuple(images.shape[2:]) != self._size:
            came = tuple(images.shape[2:])
            raise ValueError(f"images must have the size of those in the memory, {self._size}, got {came}")

    def storable(self, images: Tensor) -> Tensor:
        """Which images stay finite as they are stored, ``(B,)``."""
        return images.to(self.dtype).isfinite().flatten(1).all(1)

    def put(self, images: Tensor, placed: Mapping[int, int]) -> None:
        """Write into each slot in ``placed`` the image of ``images`` that it names."""
        if not placed:
            return
        if self._images is None:
            self._size = (images.shape[2], images.shape[3])
            self._images = torch.zeros(self.capacity, 3, *self._size, dtype=self.dtype, device=self.device)
        slots, rows = torch.tensor([list(placed.keys()), list(placed.values())], device=self.device)
        self._images[slots] = images[rows].to(self.dtype)
        self._filled = max(self._filled, max(placed) + 1)

    def clear(self) -> None:
        """Forget the images, and the size unless it was given."""
        self._images, self._filled, self._size = None, 0, self._given_size

    def restored(self, images: object) -> "ImageStore":
        """A store like this one that holds ``images``, as they were taken from ``images`` once."""
        store = ImageStore(self.capacity, self.dtype, self.device, self._given_size)
        count = len(images) if isinstance(images, Tensor) and images.ndim == 4 else 0
        sizes = tuple(images.shape[2:]) if isinstance(images, Tensor) and images.ndim == 4 else (0, 0)
        expect("images", images, self.dtype, (count, 3, *(self._given_size or sizes)))
        assert isinstance(images, Tensor)
        if count > self.capacity:
            raise ValueError(f"images in the state must be at most {self.capacity}, got {count}")
        expect_finite("images", images)
        store.put(images.to(self.device), {slot: slot for slot in range(count)})
        return store

    def max_bytes(self) -> int:
        """What a full store takes; without a given size this is known once the first image has come."""
        height, width = self._size or (0, 0)
        return self.capacity * 3 * height * width * self.dtype.itemsize
