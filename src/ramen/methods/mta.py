"""MTA: an image is answered with the mode of its views' embeddings, of which outliers count little.

Zanella and Ben Ayed, "On the Test-Time Zero-Shot Generalization of Vision-Language Models: Do We Really Need
Prompt Learning?", CVPR 2024.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.methods._info import MethodInfo
from ramen.methods._notes import RANDOM_VIEWS
from ramen.methods._registry import register
from ramen.methods._views import ViewMethod, check_share
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.peers import Group

_SETTLED = 1e-6  # a change this small ends the steps
_SMALLEST_BANDWIDTH = 1e-12  # squared; of views that are all alike


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
    """Score how much each view belongs to the others, and look for the mode of the views by these scores.

    Args:
        classifier: What it adapts.
        affinity_weight: How much agreement of its prediction with those of other views raises a view's score.
        entropy_weight: The larger, the more alike are the scores.
        neighbours: The share of the other views that decide how far a view's kernel reaches.
        rounds: How often scores and mode are estimated in turns, and the most steps of each.
        views: How many views of each image, itself among them.
        smallest_crop: The least share of the image's area that a view shows.
        augmix: Severity of the changes that AugMix mixes into the crops, up to 10; 0 for crops as they are.
            TPT's own code: 1 for fine-grained data sets, else none.
        views_at_once: How many views go through the encoder together, which decides the memory needed.
        seed: Decides which views are drawn.
        group: As for every method.
    """

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        affinity_weight: float = 4.0,
        entropy_weight: float = 0.2,
        *,
        neighbours: float = 0.3,
        rounds: int = 5,
        views: int = 64,
        smallest_crop: float = 0.08,
        augmix: float = 0.0,
        views_at_once: int = 64,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(
            classifier,
            views=views,
            smallest_crop=smallest_crop,
            augmix=augmix,
            views_at_once=views_at_once,
            seed=seed,
            group=group,
        )
        self.affinity_weight = checks.number("affinity_weight", affinity_weight, 0)
        self.entropy_weight = checks.number("entropy_weight", entropy_weight, 0, exclusive=True)
        self.neighbours = check_share("neighbours", neighbours)
        self.rounds = checks.integer("rounds", rounds, 1)

    def from_views(self, embeddings: Tensor) -> Tensor:
        """Alternate between the views' scores and their mode."""
        if self.views == 1:
            return self.classifier.logits(embeddings[:, 0])
        bandwidths = self._squared_bandwidths(embeddings)
        probabilities = self.view_logits(embeddings).softmax(2)
        affinities = probabilities @ probabilities.mT

        def kernel(mode: Tensor) -> Tensor:
            squared = (embeddings - mode[:, None]).square().sum(2)
            return torch.exp(-squared / (2 * bandwidths))

        def next_scores(scores: Tensor, density: Tensor) -> Tensor:
            agreement = (affinities @ scores[:, :, None]).squeeze(2)
            return ((density + self.affinity_weight * agreement) / self.entropy_weight).softmax(1)

        def next_mode(mode: Tensor, scores: Tensor) -> Tensor:
            return F.normalize(((scores * kernel(mode))[:, :, None] * embeddings).sum(1), dim=1)

        scores = torch.full_like(bandwidths, 1 / self.views)
        mode = embeddings[:, 0]
        for _ in range(self.rounds):
            density = kernel(mode)
            scores = self._settle(scores, partial(next_scores, density=density))
            mode = self._settle(mode, partial(next_mode, scores=scores))
        return self.classifier.logits(mode)

    def _squared_bandwidths(self, embeddings: Tensor) -> Tensor:
        """Half the mean squared distance of each view to the nearest others, ``(B, views)``."""
        exact = "donot_use_mm_for_euclid_dist"  # views may be almost alike
        distances = torch.cdist(embeddings, embeddings, compute_mode=exact).sort(2).values
        number = max(1, int(self.neighbours * (self.views - 1)))
        nearest = distances[:, :, 1 : number + 1]  # without the view itself
        return (nearest.square().mean(2) / 2).clamp_min(_SMALLEST_BANDWIDTH)

    def _settle(self, start: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
        """At most so many steps from ``start``, for each image until one changes hardly anything."""
        now, moving = start, torch.ones_like(start[:, :1], dtype=torch.bool)
        for _ in range(self.rounds):
            following = torch.where(moving, step(now), now)
            moving = moving & ((following - now).norm(dim=1, keepdim=True) >= _SETTLED)
            now = following
        return now
