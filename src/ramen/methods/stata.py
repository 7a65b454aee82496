"""StatA: a batch is clustered into classes whose Gaussians are anchored to the texts; nothing is learned.

Zanella et al., "Realistic Test-Time Adaptation of Vision-Language Models", CVPR 2025.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.methods._losses import nearest_others
from ramen.methods._method import Method
from ramen.methods._passes import Answer, Steps, embeddings_of_all
from ramen.methods._registry import MethodInfo, field, register

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
class StatA(Method):
    """Alternate between assigning a batch's images to classes and estimating the classes' Gaussians."""

    rounds: int = field(10, ge=0, doc="How often the Gaussians are estimated.")
    steps: int = field(5, ge=1, doc="Steps of the assignments in each round.")
    neighbours: int = field(3, ge=1, doc="How many similar images an image's assignment is to agree with.")
    density_weight: float = field(
        0.02,
        ge=0,
        doc="How much the Gaussian log densities count against the zero-shot logits, at a logit scale of "
        "100 and 512 dimensions.",
    )
    anchor: float = field(
        1.0, gt=0, doc="For how many images the text counts in the statistics of its class."
    )

    recordable = True
    joins_groups = True

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Assign and estimate in turns, and answer with the last assignments."""
        clf, texts = self.classifier, self.classifier.class_embeddings
        zero_shot, embeddings, usable = yield from embeddings_of_all(self, images, usable)
        prior = clf.logits(embeddings)
        scale = clf.logit_scale / 100
        neighbour_weights = scale * self._neighbour_weights(embeddings, usable)
        density_weight = scale * self.density_weight * 512 / texts.shape[1]

        images = _with_squares(embeddings)
        assigned = prior.softmax(1)
        first = self._first_variances(images, torch.where(usable[:, None], assigned, 0), usable)
        factors, constants = _density_factors(texts, first.expand_as(texts))
        for number in range(self.rounds + 1):
            if number:
                factors, constants = _anchored(images, usable, assigned, texts, first, self.anchor)
            # log densities are half of minus what constants and factors say
            evidence = torch.add(prior, constants, alpha=-density_weight / 2)
            evidence.addmm_(images, factors.T, alpha=-density_weight / 2)
            for _ in range(self.steps):
                # images that are not usable have no weight, whatever they are assigned to
                logits = torch.addmm(evidence, neighbour_weights, assigned)
                assigned = logits.softmax(1)
        return Answer(logits.log_softmax(1), zero_shot, usable)

    def _first_variances(self, images: Tensor, assigned: Tensor, usable: Tensor) -> Tensor:
        """One for each coordinate ``(d,)``, around the texts, for all classes."""
        weights, texts = assigned.sum(0)[:, None], self.classifier.class_embeddings
        squared = _squared_distances(assigned.T @ images, weights, texts)
        return squared.sum(0) / usable.sum().clamp_min(1)

    def _neighbour_weights(self, embeddings: Tensor, usable: Tensor) -> Tensor:
        """The cosines of neighbours, in both directions, over how many neighbours there are, ``(B, B)``."""
        cosines = embeddings @ embeddings.T
        near = torch.where(nearest_others(cosines, usable, self.neighbours), cosines, 0)
        return (near + near.T) / (2 * self.neighbours)


# With variances of each coordinate, a log density is a product of ``_with_squares(images)`` and of factors of
# the class, and a constant.


def _with_squares(embeddings: Tensor) -> Tensor:
    """The squares of embeddings ``(B, d)``, and minus twice the embeddings beside them, ``(B, 2d)``."""
    return torch.cat([embeddings.square(), -2 * embeddings], 1)


def _squared_distances(sums: Tensor, weights: Tensor, centres: Tensor) -> Tensor:
    """Squared distances of images from a class's centre ``(C, d)`` in each coordinate, summed by assignment.

    ``sums`` are ``_with_squares`` of the images, summed by assignment, ``(C, 2d)``, and ``weights`` are the
    sums of the assignments, ``(C, 1)``.
    """
    squares, minus_twice = sums.chunk(2, 1)
    return torch.addcmul(squares, centres, torch.addcmul(minus_twice, weights, centres)).clamp_min(0)


def _density_factors(means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Factors ``(C, 2d)`` and constants ``(C,)``, given means and variances ``(C, d)``.

    A log density is ``-0.5 * (_with_squares(image) @ factors + constant)``, without what all have in common.
    """
    variances = variances.clamp_min(_SMALLEST_VARIANCE)
    precisions = variances.reciprocal()
    weighted = means * precisions
    return torch.cat([precisions, weighted], 1), torch.addcmul(variances.log(), means, weighted).sum(1)


def _anchored(
    images: Tensor, usable: Tensor, assigned: Tensor, texts: Tensor, first: Tensor, anchor: float
) -> tuple[Tensor, Tensor]:
    """``_density_factors`` of the classes: of their images, and of the text the more the fewer they have.

    Args:
        images: ``_with_squares`` of the embeddings, ``(B, 2d)``; 0 for images that are not usable.
        usable: Which images count, ``(B,)``.
        assigned: Their probabilities, ``(B, C)``.
        texts: ``(C, d)``.
        first: The variances ``(d,)`` around its text of a class that has no images.
        anchor: For how many images the text counts.
    """
    sums, labels = assigned.T @ images, assigned.argmax(1)
    own_images = (labels[:, None] == torch.arange(len(texts), device=labels.device)) & usable[:, None]
    counts = own_images.sum(0, dtype=texts.dtype)[:, None]
    weights = torch.where(usable[:, None], assigned, 0).sum(0)[:, None]
    share = counts / (counts + anchor)
    own = F.normalize(-0.5 * sums.chunk(2, 1)[1], dim=1)
    means = F.normalize(torch.lerp(texts, own, share), dim=1)
    away = texts - means
    around = _squared_distances(sums, weights, means) / weights.clamp_min(_SMALLEST_WEIGHT)
    return _density_factors(means, torch.lerp(torch.addcmul(first, away, away), around, share))
