"""Changes of images that were normalised already, for methods that augment them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ramen.models.classifier import MissingPartError, ZeroShotClassifier


class NormalisedPixels:
    """How images were normalised, so that they can be changed as images in [0, 1].

    Args:
        method: The name of the method that needs it.
        classifier: Whose preprocessing says it, if it is not given.
        mean: Mean per channel that was subtracted from the images; from the classifier's preprocessing if
            not given.
        std: Standard deviation per channel that the images were divided by; likewise.
    """

    def __init__(
        self,
        method: str,
        classifier: ZeroShotClassifier,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self.mean, self.std = _statistics(method, classifier, mean, std)
        self._tensors: tuple[Tensor, Tensor] | None = None

    def changed(self, images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Normalised images after a ``change`` of images in [0, 1], in fp32 or fp64."""
        wide = images.to(torch.promote_types(images.dtype, torch.float32))
        mean, std = self._on_device_of(wide)
        return (change(wide * std + mean) - mean) / std

    def _on_device_of(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and std as tensors, made once: copying them to a GPU would wait for all of its work."""
        kept = self._tensors
        if kept is None or (kept[0].device, kept[0].dtype) != (images.device, images.dtype):
            mean, std = (images.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
            self._tensors = kept = mean, std
        return kept


def _statistics(
    method: str, classifier: ZeroShotClassifier, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if (mean is None) != (std is None):
        raise ValueError(f"mean and std must be given together, got mean={mean!r} and std={std!r}")
    if mean is not None and std is not None:
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError(f"mean and std must be three numbers, std above 0, got {mean!r}, {std!r}")
        return tuple(map(float, mean)), tuple(map(float, std))
    if classifier.pixel_statistics is None:
        raise MissingPartError(
            f"method {method!r} augments images in [0, 1] and must know how they were normalised: give the "
            "ZeroShotClassifier its preprocess=ramen.Preprocess(...), or give mean=... and std=... here"
        )
    return classifier.pixel_statistics
