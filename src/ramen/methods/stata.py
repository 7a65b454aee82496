"""StatA: a batch is clustered into classes whose Gaussians are anchored to the texts; nothing is learned.

Zanella et al., "Realistic Test-Time Adaptation of Vision-Language Models", CVPR 2025.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.memory.class_means import membership
from ramen.methods._answers import Answer
from ramen.methods._info import MethodInfo
from ramen.methods._neighbours import nearest_others
from ramen.methods._pass_sharing import EmbeddingMethod, without_refused
from ramen.methods._registry import register
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.peers import Group

_SMALLEST_VARIANCE = 1e-8  # of a coordinate of unit vectors
_SMALLEST_WEIGHT = 1e-30  # of a class that has no image: it then counts for nothing


@register(
    MethodInfo(
        name="stata",
        title="StatA: statistical anchor, a regularised mixture of Gaussians",
        venue="CVPR 2025",
        paper="https://arxiv.org/abs/2501.03729",
        updates="nothing; each batch is assigned to classes by its own Gaussians, anchored to the texts",
        predicts_with="the one forward pass: the batch's assignments",
        batch_dependent=True,
        forwards=1,
        backwards=0,
        notes=(
            "from StatA's code: 10 rounds with 5 steps of the assignments each, 3 neighbours, density weight "
            "1/50, anchor 1 for streams of batches",
            "decided here: density and neighbour weights are meant for a logit scale of 100 and the density "
            "weight for 512 dimensions, as in a ViT-B/16; they are multiplied by logit scale / 100, and the "
            "density's by 512 / dimensions, over which log densities add up",
            "decided here: the first variance is the mean over the whole batch, whatever its size; StatA's "
            "code divides by it once per piece of 2,500 images",
            "decided here: an image itself is left out of its neighbours by its place; StatA's code leaves "
            "out the nearest one, which may be a duplicate",
            "decided here: a class without any image keeps its text and the first variance, and no variance "
            "is below 1e-8; StatA's code divides 0 by 0",
            "densities come from matrix products: memory is of the order of (images + dimensions) x classes",
        ),
    )
)
class StatA(EmbeddingMethod):
    """Alternate between assigning a batch's images to classes and estimating the classes' Gaussians.

    Args:
        classifier: What it adapts.
        rounds: How often the Gaussians are estimated.
        steps: Steps of the assignments in each round.
        neighbours: How many similar images an image's assignment is to agree with.
        density_weight: How much the Gaussian log densities count against the zero-shot logits, at a logit
            scale of 100 and 512 dimensions.
        anchor: For how many images the text counts in the statistics of its class.
        seed: Has no effect.
        group: As for every method.
    """

    recordable = True
    joins_groups = True

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        rounds: int = 10,
        *,
        steps: int = 5,
        neighbours: int = 3,
        density_weight: float = 0.02,
        anchor: float = 1.0,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.rounds = checks.integer("rounds", rounds, 0)
        self.steps = checks.integer("steps", steps, 1)
        self.neighbours = checks.integer("neighbours", neighbours, 1)
        self.density_weight = checks.number("density_weight", density_weight, 0)
        self.anchor = checks.number("anchor", anchor, 0, exclusive=True)

    def from_embeddings(self, embeddings: Tensor, usable: Tensor) -> Answer:
        """Assign and estimate in turns, and answer with the last assignments."""
        clf, texts = self.classifier, self.classifier.class_embeddings
        zero_shot = clf.logits(embeddings)
        embeddings, usable = without_refused(embeddings, usable)
        prior = clf.logits(embeddings)
        scale = clf.logit_scale / 100
        neighbour_weights = scale * self._neighbour_weights(embeddings, usable)
        density_weight = scale * self.density_weight * 512 / texts.shape[1]

        images = _Images(embeddings, usable)
        assigned = torch.where(usable[:, None], prior.softmax(1), 0)
        first = images.squared_distances(assigned, texts).sum(0) / usable.sum().clamp_min(1)
        gaussians = _Gaussians(texts, first.expand_as(texts))
        for number in range(self.rounds + 1):
            if number:
                gaussians = self._estimate(images, torch.where(usable[:, None], assigned, 0), first)
            evidence = torch.add(prior, gaussians.log_densities(images), alpha=density_weight)
            for _ in range(self.steps):
                # images that are not usable have no weight, whatever they are assigned to
                logits = torch.addmm(evidence, neighbour_weights, assigned)
                assigned = logits.softmax(1)
        return Answer(logits.log_softmax(1), zero_shot, usable)

    def _neighbour_weights(self, embeddings: Tensor, usable: Tensor) -> Tensor:
        """The cosines of neighbours, in both directions, over how many neighbours there are, ``(B, B)``."""
        cosines = embeddings @ embeddings.T
        near = torch.where(nearest_others(cosines, usable, self.neighbours), cosines, 0)
        return (near + near.T) / (2 * self.neighbours)

    def _estimate(self, images: "_Images", assigned: Tensor, first: Tensor) -> "_Gaussians":
        """The classes' Gaussians: of their images, and of the text the more the fewer images they have."""
        texts = self.classifier.class_embeddings
        counts = membership(assigned.argmax(1), images.usable, len(texts)).sum(0, dtype=texts.dtype)[:, None]
        share = counts / (counts + self.anchor)
        own = F.normalize(assigned.T @ images.embeddings, dim=1)
        means = F.normalize(torch.lerp(texts, own, share), dim=1)
        weights = assigned.sum(0)[:, None].clamp_min(_SMALLEST_WEIGHT)
        away = texts - means
        variances = torch.lerp(
            torch.addcmul(first, away, away), images.squared_distances(assigned, means) / weights, share
        )
        return _Gaussians(means, variances)


class _Images:
    """A batch and what is computed of it once: on a GPU a round costs what its small kernels cost to start.

    Args:
        embeddings: ``(B, d)``, 0 for images that are not usable.
        usable: ``(B,)``.
    """

    def __init__(self, embeddings: Tensor, usable: Tensor) -> None:
        self.embeddings, self.usable = embeddings, usable
        self.with_squares = torch.cat([embeddings.square(), -2 * embeddings], 1)  # (B, 2d)

    def squared_distances(self, assigned: Tensor, centres: Tensor) -> Tensor:
        """Squared distances from a class's centre in each coordinate, summed by assignment, ``(C, d)``."""
        squares, minus_twice = (assigned.T @ self.with_squares).chunk(2, 1)
        weights = assigned.sum(0)[:, None]
        return torch.addcmul(squares, centres, torch.addcmul(minus_twice, weights, centres)).clamp_min(0)


@dataclass(frozen=True)
class _Gaussians:
    """One for each class, with a variance ``(C, d)`` for each coordinate around its mean ``(C, d)``."""

    means: Tensor
    variances: Tensor

    def log_densities(self, images: _Images) -> Tensor:
        """``(B, C)``, without what all classes have in common; no tensor has a size of B x C x d."""
        variances = self.variances.clamp_min(_SMALLEST_VARIANCE)
        precisions = variances.reciprocal()
        weighted = self.means * precisions
        of_class = torch.addcmul(variances.log(), self.means, weighted).sum(1)
        return -0.5 * torch.addmm(of_class, images.with_squares, torch.cat([precisions, weighted], 1).T)
