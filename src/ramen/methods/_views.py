"""Methods that answer each image with many random views of it, and learn nothing from one for the next."""

from abc import abstractmethod
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ramen.images.augmix import STRONGEST, WEAKEST, mixed_views
from ramen.images.views import random_views
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
        self._pixels = NormalisedPixels(self.info.name, classifier) if self.augmix else None
        self.views_at_once = checks.integer("views_at_once", views_at_once, 1)
        self._encode = self.record(partial(_encode, classifier))

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
        texts = self.classifier.class_embeddings
        found = []
        for part in images.to(texts.dtype).split(max(1, self.views_at_once // self.views)):
            views = self._views_of(part).flatten(0, 1)
            found += [self._encode(piece)[0] for piece in views.split(self.views_at_once)]
        return torch.cat(found).view(len(images), self.views, -1)

    def _views_of(self, images: Tensor) -> Tensor:
        """``(B, views, 3, H, W)``; the first is the image, and is never changed."""
        views = random_views(images, self.views, self.smallest_crop, self.seed)
        if self._pixels is None or self.views == 1:
            return views
        keys = row_keys(images.float())
        mixed = partial(mixed_views, keys=keys, severity=self.augmix, seed=self.seed)
        return torch.cat([views[:, :1], self._pixels.changed(views[:, 1:], mixed)], 1)


def _check_severity(augmix: object) -> float:
    severity = checks.number("augmix", augmix, 0)
    if severity and not WEAKEST <= severity <= STRONGEST:
        raise ValueError(f"augmix must be 0 or between {WEAKEST} and {STRONGEST}, got {severity:g}")
    return severity


def _encode(classifier: ZeroShotClassifier, images: Tensor) -> tuple[Tensor]:
    return (classifier.encode(images),)


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
