"""TDA: two caches of test images, one for what they are and one for what they are not, correct the logits.

Karmanov et al., "Efficient Test-Time Adaptation of Vision-Language Models", CVPR 2024.
"""

import math

import torch
from torch import Tensor

from ramen.memory.lowest_entropy import Arrivals, LowestEntropyMemory
from ramen.memory.rows import ColumnSpec
from ramen.methods._losses import entropy
from ramen.methods._method import Method
from ramen.methods._passes import Answer, Steps, embeddings_of_all
from ramen.methods._registry import MethodInfo, field, register
from ramen.utils import checks


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
class TDA(Method):
    """Add similarity to confident images of a class; subtract it for classes that uncertain images may be."""

    positive_capacity: int = field(
        3, ge=1, saved=True, doc="The most entries per class in the positive cache."
    )
    positive_alpha: float = field(
        1.0,
        ge=0,
        doc="The positive cache's share in the logits. The paper's: mixed streams 1.0; single domains 1.0 "
        "(CIFAR-10-C), 1.0 (CIFAR-100-C), 2.0 (ImageNet-C), 2.0 (DomainNet).",
    )
    positive_beta: float = field(5.0, ge=0, doc="How fast an entry's weight falls with its cosine distance.")
    negative_capacity: int = field(
        2, ge=1, saved=True, doc="The most entries per class in the negative cache."
    )
    negative_alpha: float = field(0.117, ge=0, doc="The negative cache's share in the logits.")
    negative_beta: float = field(1.0, ge=0, doc="Like positive_beta, for the negative cache.")
    entropy_lower: float = field(
        0.2,
        ge=0,
        doc="Lower bound of the entropy, divided by log2 of the number of classes, of images that enter "
        "the negative cache.",
    )
    entropy_upper: float = field(0.5, doc="Upper bound of the same.")
    mask_lower: float = field(
        0.03,
        ge=0,
        saved=True,
        doc="Lower bound of the probability of classes that an entry of the negative cache counts against.",
    )
    mask_upper: float = field(1.0, saved=True, doc="Upper bound of the same.")

    recordable = True
    joins_groups = True

    def setup(self) -> None:
        classifier = self.classifier
        checks.number("entropy_upper", self.entropy_upper, self.entropy_lower)
        checks.number("mask_upper", self.mask_upper, self.mask_lower)
        classes, width = classifier.class_embeddings.shape
        embeddings = ColumnSpec(classifier.class_embeddings.dtype, classifier.device, width)
        masks = ColumnSpec(torch.bool, classifier.device, classes)
        positive = LowestEntropyMemory(classes, self.positive_capacity, {"embeddings": embeddings})
        negative = LowestEntropyMemory(
            classes, self.negative_capacity, {"embeddings": embeddings, "masks": masks}
        )
        self.positive = self.add_memory(positive, "positive.")
        self.negative = self.add_memory(negative, "negative.")

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Enter the caches, then read them: for all images at once, as if they came one at a time."""
        clf = self.classifier
        zero_shot, embeddings, usable = yield from embeddings_of_all(self, images, usable)
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
