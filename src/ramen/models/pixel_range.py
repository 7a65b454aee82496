"""Notices pixels of 0 to 255 that were given as if they were normalised."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ramen.utils.numerics import finite_or_zero, plain_numerics

_WHITE = 255.0
_FAR_BEYOND = 4  # times the largest number that normalising gives


class PixelRangeCheck:
    """A check of batches for one preprocessing.

    On the CPU every batch is checked. On other devices that ends with the first batch that has negative
    numbers, as normalised images have. The host waits for a GPU once, for the first batch of all. If that one
    was blank, as for warming up, later ones are looked at when their numbers have arrived, a batch late.

    Args:
        mean: Of the channels, as preprocessing subtracts it.
        std: Preprocessing then divides by it.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._brightest = max((1 - m) / s for m, s in zip(mean, std, strict=True))
        # for devices other than the CPU
        self._has_waited = self._is_settled = False
        self._arriving: _Arriving | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_arriving": None}  # which cannot be copied

    @plain_numerics()
    def __call__(self, images: Tensor) -> None:
        """Raise a ValueError if ``images`` look like pixels that are not normalised."""
        kind = images.device.type
        if kind == "meta" or (kind != "cpu" and self._is_settled):
            return
        if kind == "cuda" and self._has_waited:
            self._check_later(images)
            return
        self._judge(_range(images))
        self._has_waited |= kind != "cpu"

    def _check_later(self, images: Tensor) -> None:
        arriving = self._arriving
        if arriving is None:
            self._arriving = _Arriving(_finite_range(images))
        elif arriving.has_arrived():
            self._arriving = None
            self._judge(arriving.numbers)

    def _judge(self, numbers: Tensor) -> None:
        low, high = numbers.tolist()
        self._is_settled |= low < 0
        if low >= 0 and _FAR_BEYOND * self._brightest < high <= _WHITE:
            raise ValueError(
                f"images must be normalised, to {self._brightest:.2g} at the most, got numbers from {low:g} "
                f"to {high:g}, like pixels of 0 to 255; clf.preprocess normalises files, PIL images and "
                "uint8 tensors"
            )


class _Arriving:
    """Numbers on their way from a GPU."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
        self.numbers.copy_(numbers, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def has_arrived(self) -> bool:
        return bool(self._copied.query())


def _range(images: Tensor) -> Tensor:
    """The smallest and the largest number; those that are not finite count as 0."""
    numbers = torch.stack(images.detach().aminmax())
    return numbers if numbers.isfinite().all() else _finite_range(images)


def _finite_range(images: Tensor) -> Tensor:
    return torch.stack(finite_or_zero(images.detach()).aminmax())
