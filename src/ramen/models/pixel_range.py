"""Notices pixels of 0 to 255 that were given as if they were normalised."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ramen.utils.numerics import finite_or_zero, plain_numerics

_WHITE = 255.0
_FAR_BEYOND = 4  # times the largest number that normalising gives


class PixelRangeCheck:
    """A check of batches for one preprocessing.

    On the CPU every batch is checked. On other devices that would make the host wait for each of them, so it
    ends with the first batch that has negative numbers, as normalised images have.

    Args:
        mean: Of the channels, as preprocessing subtracts it.
        std: Preprocessing then divides by it.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._brightest = max((1 - m) / s for m, s in zip(mean, std, strict=True))
        self._is_settled = False  # for devices other than the CPU

    @plain_numerics()
    def __call__(self, images: Tensor) -> None:
        """Raise a ValueError if ``images`` look like pixels that are not normalised."""
        is_cheap = images.device.type == "cpu"
        if images.is_meta or (self._is_settled and not is_cheap):
            return
        low, high = _range(images.detach())
        self._is_settled |= low < 0
        if low >= 0 and _FAR_BEYOND * self._brightest < high <= _WHITE:
            raise ValueError(
                f"images must be normalised, so that the largest number is about {self._brightest:.2g}, got "
                f"numbers from {low:g} to {high:g}, like pixels of 0 to 255; clf.preprocess normalises files, "
                "PIL images and uint8 tensors"
            )


def _range(images: Tensor) -> tuple[float, float]:
    """The smallest and the largest number; those that are not finite count as 0."""
    low, high = torch.stack(images.aminmax()).tolist()
    if not high - low < torch.inf:
        low, high = torch.stack(finite_or_zero(images).aminmax()).tolist()
    return low, high
