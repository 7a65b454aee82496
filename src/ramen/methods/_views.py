"""Methods that answer each image with many random views of it, and learn nothing from one for the next."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ramen.images.augmix import STRONGEST, WEAKEST, mixed_views
from ramen.images.views import draw_places, views_at
from ramen.methods._losses import entropy
from ramen.methods._method import Method
from ramen.methods._passes import Answer
from ramen.methods._registry import field
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.utils.numerics import row_keys


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


class ViewMethod(Method):
    """A method that encodes views of each image, and does the rest with their embeddings.

    In a group every process answers its own images: there is nothing to share.
    """

    joins_groups: ClassVar[bool] = True

    views: int = field(64, ge=1, doc="How many views of each image, itself among them.")
    smallest_crop: float = field(
        0.08, gt=0, le=1, doc="The least share of the image's area that a view shows."
    )
    augmix: float = field(
        0.0,
        ge=0,
        le=STRONGEST,
        doc="Severity of the changes that AugMix mixes into the crops, up to 10; 0 for crops as they are. "
        "TPT's own code: 1 for fine-grained data sets, else none.",
    )
    views_at_once: int = field(
        64,
        ge=1,
        doc="How many views go through the encoder together, which decides the memory needed.",
    )
    seed: int = field(0, ge=0, doc="Decides which views are drawn.")

    def setup(self) -> None:
        if 0 < self.augmix < WEAKEST:
            raise ValueError(f"augmix must be 0 or at least {WEAKEST}, got {self.augmix:g}")
        pixels = NormalisedPixels(self.info.name, self.classifier) if self.augmix else None
        # Views and the passes over them are recorded, on a GPU: one start instead of many.
        self._encoded_views = self._recorder.record(
            _EncodedViews(self.classifier, self.augmix, pixels, at_once=self.views_at_once, seed=self.seed)
        )

    @abstractmethod
    def from_views(self, embeddings: Tensor) -> Tensor:
        """Logits ``(B, C)``, given the unit embeddings ``(B, views, d)`` of each image's views."""

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Encode the views and answer; the first view is the image itself, as zero-shot."""
        if not len(images):  # of this process, in a group
            nothing = self.classifier.class_embeddings.new_empty(0, self.classifier.num_classes)
            return Answer(nothing, nothing, usable)
        embeddings = self._view_embeddings(images)
        usable = usable & embeddings.flatten(1).isfinite().all(1)
        zero_shot = self.classifier.logits(embeddings[:, 0])
        return Answer(self.from_views(embeddings), zero_shot, usable)

    def passes(self) -> tuple[int, int]:
        """One forward pass for each view."""
        return self.views, 0

    def view_logits(self, embeddings: Tensor) -> Tensor:
        """Logits ``(B, views, C)`` of embeddings ``(B, views, d)``."""
        return self.classifier.logits(embeddings.flatten(0, 1)).view(*embeddings.shape[:2], -1)

    def _view_embeddings(self, images: Tensor) -> Tensor:
        """``(B, views, d)``; this many views are in memory at once, however large the batch is."""
        at_once, found = max(1, self.views_at_once // self.views), []
        # To draw for an image takes about as much memory as one view, and many small kernels for any number.
        for group in images.to(self.classifier.class_embeddings.dtype).split(at_once * self.views):
            places = draw_places(group, self.views, self.smallest_crop, self.seed)
            parts = zip(*(rows.split(at_once) for rows in (group, *places)), strict=True)
            found += [self._encoded_views(*part)[0] for part in parts]
        return torch.cat(found)


@dataclass(frozen=True)
class _EncodedViews:
    """Embeddings of views, as a function of tensors; its fields are the method's."""

    classifier: ZeroShotClassifier
    augmix: float
    pixels: NormalisedPixels | None
    at_once: int
    seed: int

    def __call__(self, images: Tensor, across: Tensor, down: Tensor) -> tuple[Tensor]:
        """``(B, views, d)``, for images and the places that their views come from."""
        views = views_at(images, across, down)
        if self.pixels is not None and across.shape[1]:
            # The first view is the image, and is never changed.
            mixed = partial(mixed_views, keys=row_keys(images.float()), severity=self.augmix, seed=self.seed)
            views = torch.cat([views[:, :1], self.pixels.changed(views[:, 1:], mixed)], 1)
        found = [self.classifier.encode(piece) for piece in views.flatten(0, 1).split(self.at_once)]
        return (torch.cat(found).view(*views.shape[:2], -1),)


def surest_first(logits: Tensor) -> Tensor:
    """The order ``(B, views)`` of views by the entropies of their logits ``(B, views, C)``."""
    return entropy(logits).argsort(dim=1, stable=True)


def surest(rows: Tensor, logits: Tensor, share: float) -> Tensor:
    """The rows ``(B, kept, ...)`` that belong to the surest views, of ``(B, views, ...)``: at least one."""
    kept = surest_first(logits)[:, : number_kept(logits.shape[1], share)]
    return rows.gather(1, kept[:, :, None].expand(-1, -1, rows.shape[2]))


def entropy_of_mean(logits: Tensor) -> Tensor:
    """The entropy ``(B,)`` of the mean probabilities of views, given their logits ``(B, views, C)``."""
    return entropy(logits.log_softmax(2).logsumexp(1))  # whose sum over classes is the number of views


def number_kept(views: int, share: float) -> int:
    """So many of the views are a share of them, rounded down as in the published codes.

    >>> number_kept(64, 0.1), number_kept(64, 0.3), number_kept(3, 0.1)
    (6, 19, 1)
    """
    return max(1, int(views * share))
