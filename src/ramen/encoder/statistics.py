"""Statistics for BatchNorm layers other than the running statistics of their training.

Test-time methods for ResNets often take mean and variance from the images of the current batch, or mix these
with stored ones. The encoder stays a pure function: each call gets the images to count and the stored
statistics, and returns the mixture. Nothing is kept in a layer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ramen.utils import checks


class Statistics:
    """The BatchNorm statistics for one call of an encoder: of the batch, stored ones, or a mixture.

    Mean and variance of every BatchNorm layer are ``(1 - share) * stored + share * batch``. The batch's
    statistics are computed from all pixels of the counted images, with the biased variance, and gradients
    flow through them. All images are normalised in the same way, counted or not. If no image is counted, the
    stored statistics are used alone.

    Args:
        counted: Which images contribute to the batch's statistics, ``(B,)`` of bool; all if not given.
        share: The weight of the batch's statistics in the mixture: 0 uses only the stored ones, 1 only the
            batch's.
        stored: ``(2, channels)`` like ``AffineEncoder.base_statistics``; those of the training if not given.

    Attributes:
        mixed: The mixture that the last call has used, like ``stored``, without gradients.
    """

    mixed: Tensor

    def __init__(
        self, counted: Tensor | None = None, *, share: float = 1.0, stored: Tensor | None = None
    ) -> None:
        self.share = checks.number("share", share, 0)
        if self.share > 1:
            raise ValueError(f"share must be between 0 and 1, got {share}")
        self.counted = counted
        self.stored = stored

    def check(self, batch: int, base: Tensor) -> None:
        """Raise unless these fit ``batch`` images and an encoder whose own statistics are ``base``."""
        if not base.numel():
            raise ValueError("statistics must be None for an encoder without BatchNorm layers")
        counted = self.counted
        if counted is not None and (counted.dtype != torch.bool or tuple(counted.shape) != (batch,)):
            raise ValueError(
                f"counted must be {batch} booleans, one per image, got {counted.dtype} of shape "
                f"{tuple(counted.shape)}"
            )
        if self.stored is not None and self.stored.shape != base.shape:
            raise ValueError(
                f"stored must have the shape {tuple(base.shape)} of the encoder's base_statistics, "
                f"got {tuple(self.stored.shape)}"
            )


@dataclass
class LayerStatistics:
    """The statistics of one layer during a call: ``mean`` and ``var`` are the stored ones, then the mixture.

    If a layer is called several times within a pass, each call continues from the mixture of the last.
    """

    mean: Tensor
    var: Tensor
    share: float
    counted: Tensor  # (B,)

    def normalise(
        self, x: Tensor, counted: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        """``x``, with channels on axis 1, normalised with the mixture; ``counted`` broadcasts against it."""
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
        rows = counted.sum()
        size = (rows * (x.numel() // x.shape[1] // counted.numel())).clamp_min(1)
        batch_mean = torch.where(counted, x, 0).sum(axes) / size
        centred = x - batch_mean.view(shape)
        batch_var = torch.where(counted, centred.square(), 0).sum(axes) / size

        share = self.share * (rows > 0).to(x.dtype)
        mean = (1 - share) * self.mean + share * batch_mean
        var = (1 - share) * self.var + share * batch_var
        # An infinite variance would silently make all images alike; NaN is noticed and handled.
        var = torch.where(var.isfinite(), var, torch.nan)
        self.mean, self.var = mean.detach(), var.detach()

        # (x - mean) * scale + bias, from ``centred``, which the backward pass saves anyway for the variance
        scale = torch.rsqrt(var + eps) if weight is None else torch.rsqrt(var + eps) * weight
        shift = (batch_mean - mean) * scale if bias is None else (batch_mean - mean) * scale + bias
        return torch.addcmul(shift.view(shape), centred, scale.view(shape))


def of_batch(chosen: str, usable: Tensor) -> Statistics | None:
    """For the choice "batch", the statistics of its usable images; otherwise None: running statistics."""
    return Statistics(usable) if chosen == "batch" else None
