"""TDA: two caches of test images, one for what they are and one for what they are not, correct the logits.

Karmanov et al., "Efficient Test-Time Adaptation of Vision-Language Models", CVPR 2024.
"""

import math

import torch
from torch import Tensor

from ramen.memory.lowest_entropy import Arrivals, LowestEntropyMemory
from ramen.memory.row_table import ColumnSpec
from ramen.methods._answers import Answer
from ramen.methods._info import MethodInfo
from ramen.methods._pass_sharing import EmbeddingMethod, without_refused
from ramen.methods._registry import register
from ramen.methods._steps import entropy
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.peers import Group


@register(
    MethodInfo(
        name="tda",
        title="TDA: training-free dynamic adapter",
        venue="CVPR 2024",
        paper="https://arxiv.org/abs/2403.18293",
        updates="nothing in the model; two caches of the most confident embeddings of each predicted class",
        predicts_with="the one forward pass, its logits corrected by the caches",
        batch_dependent=True,
        forwards=1,
        backwards=0,
        notes=(
            "from the Ramen paper: positive_alpha 1.0 for mixed streams, 1.0/1.0/2.0/2.0 for single domains "
            "(CIFAR-10-C, CIFAR-100-C, ImageNet-C, DomainNet), all else as in TDA's code for ImageNet, where "
            "positive_alpha is 2.0",
            "images are processed one at a time, as in TDA's code: each enters the caches, then is "
            "predicted; predictions depend on earlier images, also of the same batch, but not on how the "
            "stream is split into batches",
            "TDA's code divides the entropy, a natural logarithm, by log2 of the number of classes; so do "
            "entropy_lower and entropy_upper here: 0.2 and 0.5 are 0.29 and 0.72 of the largest entropy",
            "decided here: one view per image, as the Ramen paper mentions no more; TDA's code has up to 64",
            "decided here: logits have the classifier's own scale; TDA's alphas are meant for a scale of 100",
        ),
    )
)
class TDA(EmbeddingMethod):
    """Add similarity to confident images of a class; subtract it for classes that uncertain images may be.

    Args:
        classifier: What it adapts.
        positive_capacity: The most entries per class in the positive cache.
        positive_alpha: The positive cache's share in the logits. The paper's: mixed streams 1.0; single
            domains 1.0 (CIFAR-10-C), 1.0 (CIFAR-100-C), 2.0 (ImageNet-C), 2.0 (DomainNet).
        positive_beta: How fast an entry's weight falls with its cosine distance.
        negative_capacity: The most entries per class in the negative cache.
        negative_alpha: The negative cache's share in the logits.
        negative_beta: Like positive_beta, for the negative cache.
        entropy_lower: Lower bound of the entropy, divided by log2 of the number of classes, of images that
            enter the negative cache.
        entropy_upper: Upper bound of the same.
        mask_lower: Lower bound of the probability of classes that an entry of the negative cache counts
            against.
        mask_upper: Upper bound of the same.
        seed: Has no effect.
        group: As for every method.
    """

    recordable = True
    joins_groups = True
    state_parameters = ("positive_capacity", "negative_capacity", "mask_lower", "mask_upper")

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        positive_capacity: int = 3,
        positive_alpha: float = 1.0,
        positive_beta: float = 5.0,
        *,
        negative_capacity: int = 2,
        negative_alpha: float = 0.117,
        negative_beta: float = 1.0,
        entropy_lower: float = 0.2,
        entropy_upper: float = 0.5,
        mask_lower: float = 0.03,
        mask_upper: float = 1.0,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.positive_capacity = checks.integer("positive_capacity", positive_capacity, 1)
        self.positive_alpha = checks.number("positive_alpha", positive_alpha, 0)
        self.positive_beta = checks.number("positive_beta", positive_beta, 0)
        self.negative_capacity = checks.integer("negative_capacity", negative_capacity, 1)
        self.negative_alpha = checks.number("negative_alpha", negative_alpha, 0)
        self.negative_beta = checks.number("negative_beta", negative_beta, 0)
        self.entropy_lower = checks.number("entropy_lower", entropy_lower, 0)
        self.entropy_upper = checks.number("entropy_upper", entropy_upper, self.entropy_lower)
        self.mask_lower = checks.number("mask_lower", mask_lower, 0)
        self.mask_upper = checks.number("mask_upper", mask_upper, self.mask_lower)
        classes, width = classifier.class_embeddings.shape
        embeddings = ColumnSpec(classifier.class_embeddings.dtype, classifier.device, width)
        masks = ColumnSpec(torch.bool, classifier.device, classes)
        positive = LowestEntropyMemory(classes, self.positive_capacity, {"embeddings": embeddings})
        negative = LowestEntropyMemory(
            classes, self.negative_capacity, {"embeddings": embeddings, "masks": masks}
        )
        self.positive = self.add_memory(positive, "positive.")
        self.negative = self.add_memory(negative, "negative.")

    def from_embeddings(self, embeddings: Tensor, usable: Tensor) -> Answer:
        """Enter the caches, then read them: for all images at once, as if they came one at a time."""
        clf = self.classifier
        zero_shot = clf.logits(embeddings)
        embeddings, usable = without_refused(embeddings, usable)
        entropies, probabilities = entropy(zero_shot), zero_shot.softmax(1)
        batch = Arrivals(zero_shot.argmax(1), entropies, embeddings, usable)

        # The positive cache speaks for the class that each of its entries was predicted to be.
        sure_found = self.positive.recall(batch, self.positive_beta)
        of_class = batch.of_class(clf.num_classes)
        positive = sure_found.stored_weights.sum(2) + sure_found.batch_weights @ of_class

        # The negative one takes what is neither sure nor hopeless; each entry speaks against all classes that
        # it might be. (With a single class there is no entropy: 0/0 is in no range.)
        share = entropies / math.log2(clf.num_classes)
        unsure = batch.keeping(usable & (share > self.entropy_lower) & (share < self.entropy_upper))
        masks = (probabilities > self.mask_lower) & (probabilities < self.mask_upper)
        found = self.negative.recall(unsure, self.negative_beta)
        stored_masks = self.negative["masks"].flatten(0, 1).to(positive.dtype)
        negative = found.stored_weights.flatten(1) @ stored_masks + found.batch_weights @ masks.to(
            positive.dtype
        )

        self.positive.insert(batch, sure_found.ranks)
        self.negative.insert(unsure, found.ranks, masks=masks)
        logits = zero_shot + self.positive_alpha * positive - self.negative_alpha * negative
        return Answer(logits, zero_shot, usable)
