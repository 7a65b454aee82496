"""OGA: Gaussians of the surest embeddings of each class, with one covariance for all, beside the text.

Fuchs et al., "Online Gaussian Adaptation of Vision-Language Models", 2025.
"""

import torch
from torch import Tensor

from ramen.memory.lowest_entropy import Arrivals, LowestEntropyMemory
from ramen.memory.rows import ColumnSpec
from ramen.methods._losses import entropy
from ramen.methods._method import Method
from ramen.methods._passes import Answer, Steps, embeddings_of_all
from ramen.methods._registry import MethodInfo, field, register

_FEW = 2  # embeddings that a class needs to have a mean of its own
_ENOUGH = 3  # embeddings of one class that the covariance waits for
_WELL_KNOWN = 4  # embeddings per dimension above which the covariance is not regularised


@register(
    MethodInfo(
        name="oga",
        title="OGA: online Gaussian adaptation",
        venue="arXiv 2025",
        paper="https://arxiv.org/abs/2501.04352",
        updates="nothing in the model; a memory of the surest embeddings of each class, and its Gaussians",
        predicts_with="the one forward pass: its probabilities times a power of the Gaussian densities",
        batch_dependent=True,
        forwards=1,
        backwards=0,
        notes=(
            "from OGA's code: 8 embeddings per class and tau 0.05 for all data sets; a batch enters the "
            "memory before it is answered; a class with fewer than 2 embeddings has its text as mean; the "
            "covariance is that of all stored embeddings around the means of their classes, once a class has "
            "3, and before that the identity divided by the number of dimensions",
            "from OGA's code: up to 4 embeddings per dimension the covariance is regularised by its trace, "
            "above that its pseudo-inverse is used",
            "decided here: a mean divides by the number of embeddings; OGA's code divides by the capacity, "
            "so that means are too short until a class is full (divide_by='capacity' does so too)",
            "decided here: tau is meant for a logit scale of 100 and 512 dimensions, as in a ViT-B/16; it is "
            "multiplied by logit scale / 100, and by 512 / dimensions, over which log densities add up",
            "decided here: covariance and inverse in fp64; eigenvalues that OGA's fp32 pseudo-inverse takes "
            "for 0 count as 0",
            "each batch costs a factorisation of a d x d matrix: batches of one image are slow",
        ),
    )
)
class OGA(Method):
    """Multiply the zero-shot probabilities with densities of Gaussians that have one shared covariance."""

    capacity: int = field(8, ge=1, saved=True, doc="The most embeddings per class.")
    tau: float = field(
        0.05, ge=0, doc="How much the log densities count, at a logit scale of 100 and 512 dimensions."
    )
    divide_by: str = field(
        "count",
        choices=("count", "capacity"),
        doc='What a class\'s mean divides the sum of its embeddings by: "count" for their number, '
        '"capacity" as published.',
    )

    recordable = True
    joins_groups = True

    def setup(self) -> None:
        # Which inverse a larger memory takes is decided on the host.
        self.recordable = self.recordable and self._always_regularised
        classifier = self.classifier
        texts = classifier.class_embeddings
        columns = {"embeddings": ColumnSpec(texts.dtype, classifier.device, texts.shape[1])}
        self.memory = self.add_memory(LowestEntropyMemory(len(texts), self.capacity, columns))

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Store the batch, then answer it with the new Gaussians."""
        clf = self.classifier
        zero_shot, embeddings, usable = yield from embeddings_of_all(self, images, usable)
        self.memory.insert(Arrivals(zero_shot.argmax(1), entropy(zero_shot), embeddings, usable))

        means = self._means()
        weighted = self._times_precision(means)  # (C, d)
        # -(z - mean)^T P (z - mean) / 2, without z^T P z, which all classes have in common
        densities = embeddings.double() @ weighted.T - (weighted * means).sum(1) / 2
        tau = self.tau * clf.logit_scale / 100 * 512 / embeddings.shape[1]
        return Answer(zero_shot + (tau * densities).to(zero_shot.dtype), zero_shot, usable)

    def _means(self) -> Tensor:
        """The mean of each class's embeddings, or its text while there are too few, ``(C, d)`` in fp64."""
        counts = self.memory.filled.sum(1)
        sums = self.memory["embeddings"].double().sum(1)
        divisor = counts if self.divide_by == "count" else torch.full_like(counts, self.capacity)
        own = sums / divisor.clamp_min(1)[:, None]
        return torch.where((counts >= _FEW)[:, None], own, self.classifier.class_embeddings.double())

    @property
    def _always_regularised(self) -> bool:
        classes, width = self.classifier.class_embeddings.shape
        return classes * self.capacity <= _WELL_KNOWN * width

    def _times_precision(self, means: Tensor) -> Tensor:
        """The means times the inverse of the covariance that all classes share, ``(C, d)`` in fp64."""
        filled, width = self.memory.filled, means.shape[1]
        known, count = (filled.sum(1) >= _ENOUGH).any(), filled.sum()
        deviations = torch.where(filled[:, :, None], self.memory["embeddings"] - means[:, None], 0)
        deviations = deviations.flatten(0, 1)
        average = deviations.sum(0) / count.clamp_min(1)
        scatter = deviations.T @ deviations - count * torch.outer(average, average)
        if not self._always_regularised and known and count > _WELL_KNOWN * width:
            eps = torch.finfo(torch.float32).eps
            inverse: Tensor = torch.linalg.pinv(scatter / (count - 1), rtol=width * eps, hermitian=True)
            return means @ inverse
        trace = scatter.trace() / (count - 1).clamp_min(1)
        # Embeddings that are all the same have no covariance, and say nothing.
        spread = known & (trace > 0)
        identity = torch.eye(width, dtype=means.dtype, device=means.device)
        # Symmetric and, with the trace on its diagonal, well conditioned: half the work of a general inverse.
        regularised = torch.where(spread, scatter + trace * identity, identity)
        factor = torch.linalg.cholesky_ex(regularised).L  # unlike cholesky, it does not wait for the device
        solved = torch.cholesky_solve(means.T, factor).T
        return width * torch.where(known & ~spread, 0, solved)
