"""What BatchNorm layers normalise with, where it is not the running statistics of their training.

Test-time methods for ResNets often take mean and variance from the images of the present batch, or from a
mixture of these with stored ones. An encoder stays a pure function: what to count and what is stored is
handed in for one call, and the mixture is handed back. Nothing is kept in a layer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ramen.utils import checks


class Statistics:
    """The statistics of one call of an encoder: of the batch, stored, or a mixture.

    Mean and variance of every BatchNorm layer are ``(1 - share) * stored + share * batch``, where the batch's
    are those of the counted images, over all their pixels; the variance is the biased one. Gradients flow
    through the batch's part. The images that do not count are normalised like the others. Where no image
    counts, the stored statistics alone decide.

    Args:
        counted: Which images count, ``(B,)`` of bool; all of them if not given.
        share: The batch's part, from 0 (the stored statistics alone; then nothing is counted) to 1 (the
            batch alone).
        stored: ``(2, channels)`` like ``AffineEncoder.base_statistics``: those of the training if not given.

    Attributes:
        mixed: What the last call has normalised with, like ``stored``, without gradients.
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
        """Raise unless these are for ``batch`` images and an encoder whose own statistics are ``base``."""
        if not base.numel():
            raise ValueError("statistics must be None for an encoder without BatchNorm layers")
        counted = self.counted
        if counted is not None and (counted.dtype != torch.bool or tuple(counted.shape) != (batch,)):
            raise ValueError(
                f"counted must be {batch} truth values, one for each image, got {counted.dtype} of shape "
                f"{tuple(counted.shape)}"
            )
        if self.stored is not None and self.stored.shape != base.shape:
            raise ValueError(
                f"stored must have the shape {tuple(base.shape)} of the encoder's base_statistics, "
                f"got {tuple(self.stored.shape)}"
            )


@dataclass
class LayerStatistics:
    """One layer's part in a call; ``mean`` and ``var`` are the stored ones, then the mixture.

    A layer that is called again within the pass goes on from its mixture.
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
        # An infinite variance would make all images alike, in silence; NaN is found and dealt with.
        var = torch.where(var.isfinite(), var, torch.nan)
        self.mean, self.var = mean.detach(), var.detach()

        # (x - mean) * scale + bias, by way of ``centred``, which the backward pass keeps for the variance
        scale = torch.rsqrt(var + eps) if weight is None else torch.rsqrt(var + eps) * weight
        shift = (batch_mean - mean) * scale if bias is None else (batch_mean - mean) * scale + bias
        return torch.addcmul(shift.view(shape), centred, scale.view(shape))


CHOICES = ("source", "batch")


def choose(statistics: object, base: Tensor, valid: tuple[str, ...] = CHOICES) -> str:
    """The parameter of a method, checked against the ``base_statistics`` of its encoder."""
    chosen = checks.choice("statistics", statistics, valid)
    if chosen != "source" and not base.numel():
        raise ValueError(f"statistics={chosen!r} needs BatchNorm layers, this encoder has none")
    return chosen


def of_batch(chosen: str, usable: Tensor) -> Statistics | None:
    """For a batch of which some images are usable: their own, or None for the running statistics."""
    return Statistics(usable) if chosen == "batch" else None
