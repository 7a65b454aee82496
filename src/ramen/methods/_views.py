"""Methods that answer each image with many random views of it, and learn nothing from one for the next."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ramen.images.augmix import STRONGEST, WEAKEST, mixed_views
from ramen.images.views import draw_places, views_at
from ramen.methods._answers import Answer
from ramen.methods._base import Method
from ramen.methods._normalised_pixels import NormalisedPixels
from ramen.methods._steps import entropy
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.pair_scores import row_keys
from ramen.utils.peers import Group


class ViewMethod(Method):
    """A method that encodes views of each image, and does the rest with their embeddings.

    In a group every process answers its own images: there is nothing to share.

    Args:
        classifier: What it adapts.
        views: How many views of each image, itself among them.
        smallest_crop: The least share of the image's area that a view shows.
        augmix: Severity of the changes that AugMix mixes into the crops, up to 10; 0 for crops as they are.
        views_at_once: How many views go through the encoder together, which decides the memory needed.
        seed: Decides which views are drawn.
        group: As for every method.
    """

    joins_groups: ClassVar[bool] = True

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        *,
        views: int,
        smallest_crop: float,
        augmix: float,
        views_at_once: int,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.views = checks.integer("views", views, 1)
        self.smallest_crop = check_share("smallest_crop", smallest_crop)
        self.augmix = _check_severity(augmix)
        pixels = NormalisedPixels(self.info.name, classifier) if self.augmix else None
        self.views_at_once = checks.integer("views_at_once", views_at_once, 1)
        # Views and the passes over them are recorded, on a GPU: one start instead of many.
        self._encoded_views = self.record(
            _EncodedViews(classifier, self.augmix, pixels, at_once=self.views_at_once, seed=self.seed)
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
        """``(B, views, d)``; pixels of so many views are in memory at once, however large the batch is."""
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


def _check_severity(augmix: object) -> float:
    severity = checks.number("augmix", augmix, 0)
    if severity and not WEAKEST <= severity <= STRONGEST:
        raise ValueError(f"augmix must be 0 or between {WEAKEST} and {STRONGEST}, got {severity:g}")
    return severity


def check_share(argument: str, value: object) -> float:
    """``value`` if it is above 0 and at most 1."""
    share = checks.number(argument, value, 0, exclusive=True)
    if share > 1:
        raise ValueError(f"{argument} must be at most 1, got {share:g}")
    return share


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
