"""MTA: an image is answered with the mode of its views' embeddings, of which outliers count little.

Zanella and Ben Ayed, "On the Test-Time Zero-Shot Generalization of Vision-Language Models: Do We Really Need
Prompt Learning?", CVPR 2024.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ramen.methods._losses import RANDOM_VIEWS
from ramen.methods._registry import MethodInfo, field, register
from ramen.methods._views import ViewMethod

_SETTLED = 1e-6  # a change this small ends the steps
_SMALLEST_BANDWIDTH = 1e-12  # squared; of views that are all alike
_SHORTEST = 1e-300  # of a sum of views to which each adds nothing


@register(
    MethodInfo(
        name="mta",
        title="MTA: mean shift over views with inlierness scores",
        venue="CVPR 2024",
        paper="https://arxiv.org/abs/2405.02266",
        updates="nothing; each image is answered by its own views",
        predicts_with="the forward passes of all views: the mode of their embeddings",
        batch_dependent=False,
        forwards=64,
        backwards=0,
        random=True,
        notes=(
            "from MTA's code: 64 views, bandwidths over the nearest 0.3 of the others, affinity weight 4, "
            "entropy weight 0.2, 5 rounds of at most 5 steps each for scores and mode, which end with a "
            "change below 1e-6",
            "affinities are products of probabilities, and so depend on the logit scale: at a small one all "
            "views agree with each other",
            "decided here: a bandwidth is over at least one other view, and never 0: MTA's code divides 0 by "
            "0 if views are alike",
            RANDOM_VIEWS,
        ),
    )
)
class Mta(ViewMethod):
    """Score how much each view belongs to the others, and look for the mode of the views by these scores."""

    affinity_weight: float = field(
        4.0, ge=0, doc="How much agreement of its prediction with those of other views raises a view's score."
    )
    entropy_weight: float = field(0.2, gt=0, doc="The larger, the more alike are the scores.")
    neighbours: float = field(
        0.3, gt=0, le=1, doc="The share of the other views that decide how far a view's kernel reaches."
    )
    rounds: int = field(
        5, ge=1, doc="How often scores and mode are estimated in turns, and the most steps of each."
    )

    def from_views(self, embeddings: Tensor) -> Tensor:
        """Alternate between the views' scores and their mode."""
        if self.views == 1:
            return self.classifier.logits(embeddings[:, 0])
        # Every mode is a sum of views, so that the products of the views with each other decide everything.
        # They are kept in fp64: a squared distance is a difference of them, and views may be almost alike.
        exact = embeddings.double()
        products = exact @ exact.mT
        own = products.diagonal(dim1=1, dim2=2)
        bandwidths = self._squared_bandwidths(own[:, :, None] + own[:, None] - 2 * products)
        probabilities = self.view_logits(embeddings).softmax(2).double()
        affinities = probabilities @ probabilities.mT

        def length(coefficients: Tensor) -> Tensor:
            """Of a sum of views, ``(B, 1)``."""
            return (coefficients * _times(products, coefficients)).sum(1, keepdim=True).clamp_min(0).sqrt()

        def kernel(mode: Tensor) -> Tensor:
            along = _times(products, mode)
            squared = own + (mode * along).sum(1, keepdim=True) - 2 * along
            return torch.exp(-squared.clamp_min(0) / (2 * bandwidths))

        def next_scores(scores: Tensor, density: Tensor) -> Tensor:
            agreement = _times(affinities, scores)
            return ((density + self.affinity_weight * agreement) / self.entropy_weight).softmax(1)

        def next_mode(mode: Tensor, scores: Tensor) -> Tensor:
            weighted = scores * kernel(mode)
            return weighted / length(weighted).clamp_min(_SHORTEST)

        scores = torch.full_like(bandwidths, 1 / self.views)
        mode = torch.zeros_like(bandwidths)
        mode[:, 0] = 1  # the image itself
        for _ in range(self.rounds):
            density = kernel(mode)
            scores = self._settle(scores, partial(next_scores, density=density), _norm)
            mode = self._settle(mode, partial(next_mode, scores=scores), length)
        return self.classifier.logits(_times(embeddings.mT, mode.to(embeddings.dtype)))

    def _squared_bandwidths(self, squared_distances: Tensor) -> Tensor:
        """Half the mean squared distance of each view to the nearest others, ``(B, views)``."""
        number = max(1, int(self.neighbours * (self.views - 1)))
        nearest = squared_distances.clamp_min(0).sort(2).values[:, :, 1 : number + 1]  # not the view itself
        return (nearest.mean(2) / 2).clamp_min(_SMALLEST_BANDWIDTH)

    def _settle(
        self, start: Tensor, step: Callable[[Tensor], Tensor], size: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """At most this many steps from ``start``, for each image until one changes hardly anything."""
        now, moving = start, torch.ones_like(start[:, :1], dtype=torch.bool)
        for _ in range(self.rounds):
            following = torch.where(moving, step(now), now)
            moving = moving & (size(following - now) >= _SETTLED)
            now = following
        return now


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Each image's matrix ``(B, n, m)`` times its vector ``(B, m)``."""
    return (matrices @ vectors[:, :, None]).squeeze(2)


def _norm(vectors: Tensor) -> Tensor:
    """Of each image's vector, ``(B, 1)``."""
    return vectors.square().sum(1, keepdim=True).sqrt()
