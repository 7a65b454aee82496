"""StatA: a batch is clustered into classes whose Gaussians are anchored to the texts; nothing is learned.

Zanella et al., "Realistic Test-Time Adaptation of Vision-Language Models", CVPR 2025.
"""

import torch
from torch import Tensor

from ramen.kernels import gaussians
from ramen.kernels.assignments import assign
from ramen.methods._answers import Answer
from ramen.methods._info import MethodInfo
from ramen.methods._neighbours import nearest_others
from ramen.methods._pass_sharing import EmbeddingMethod, without_refused
from ramen.methods._registry import register
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.peers import Group


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

        images = gaussians.with_squares(embeddings)
        assigned = prior.softmax(1)
        first = self._first_variances(images, torch.where(usable[:, None], assigned, 0), usable)
        factors, constants = gaussians.density_factors(texts, first.expand_as(texts))
        for number in range(self.rounds + 1):
            if number:
                factors, constants = gaussians.anchored(images, usable, assigned, texts, first, self.anchor)
            # log densities are half of minus what constants and factors say
            evidence = torch.add(prior, constants, alpha=-density_weight / 2)
            evidence.addmm_(images, factors.T, alpha=-density_weight / 2)
            for _ in range(self.steps):
                # images that are not usable have no weight, whatever they are assigned to
                assigned, logits = assign(evidence, neighbour_weights, assigned)
        return Answer(logits.log_softmax(1), zero_shot, usable)

    def _first_variances(self, images: Tensor, assigned: Tensor, usable: Tensor) -> Tensor:
        """One for each coordinate ``(d,)``, around the texts, for all classes."""
        weights, texts = assigned.sum(0)[:, None], self.classifier.class_embeddings
        squared = gaussians.squared_distances(assigned.T @ images, weights, texts)
        return squared.sum(0) / usable.sum().clamp_min(1)

    def _neighbour_weights(self, embeddings: Tensor, usable: Tensor) -> Tensor:
        """The cosines of neighbours, in both directions, over how many neighbours there are, ``(B, B)``."""
        cosines = embeddings @ embeddings.T
        near = torch.where(nearest_others(cosines, usable, self.neighbours), cosines, 0)
        return (near + near.T) / (2 * self.neighbours)
