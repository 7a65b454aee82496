"""BATCLIP's image tower: class means of a batch move towards their texts and away from each other.

Maharana, Zhang, Guo, "BATCLIP: Bimodal Online Test-Time Adaptation for CLIP", ICCV 2025.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.batchnorm_statistics import choose
from ramen.memory.class_means import membership
from ramen.methods._answers import Answer
from ramen.methods._base import Method
from ramen.methods._info import MethodInfo
from ramen.methods._online_weights import OPTIMIZERS, OnlineWeights
from ramen.methods._registry import register
from ramen.methods._steps import loss_gradient, mean_entropy
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.peers import Group

LENGTHS = ("raw", "unit")
PAIRS = ("sum", "mean")


@register(
    MethodInfo(
        name="batclip",
        title="BATCLIP, its image tower: class means matched with texts and separated",
        venue="ICCV 2025",
        paper="https://arxiv.org/abs/2412.02837",
        updates="weight and bias of all norm layers of the image tower, online: never reset",
        predicts_with="the forward pass before the update",
        batch_dependent=False,
        forwards=1,
        backwards=1,
        notes=(
            "a variant, half of the method: BATCLIP also trains the LayerNorms of the text tower and encodes "
            "the prompts anew for every batch. Here texts are fixed vectors, as a classifier's text tower is "
            "a function without gradients. According to its paper, separation, which no text takes part in, "
            "has most of the gain",
            "from BATCLIP's code: the three terms with equal weights, means over the batch alone, AdamW",
            "as in BATCLIP's code, means to be matched are of embeddings as the tower returns them, about 10 "
            "long for OpenAI's ViT-B/16: another tower's length is another weight. length='unit' takes unit "
            "embeddings",
            "as in BATCLIP's code, separation is a sum over pairs of predicted classes: it grows with the "
            "square of their number, and dominates from 100 classes on. pairs='mean' takes the mean",
            "the classifier's own class embeddings; BATCLIP has one template, 'a photo of a {}.'",
            "BATCLIP is reset after each corruption, and so are single domains here; mixed streams are one",
            "BatchNorm keeps its running statistics; BATCLIP's own code uses the batch's "
            "(statistics='batch')",
        ),
    )
)
class Batclip(Method):
    """Take one step per batch on the entropy and on the mean embeddings of the predicted classes.

    Args:
        classifier: What it adapts.
        lr: Step size. BATCLIP's own: 1e-3 (CIFAR-10-C), 5e-4 (CIFAR-100-C, ImageNet-C).
        match: Weight of the similarity of class means and texts.
        separation: Weight of the distances between class means.
        length: Of the embeddings that are averaged for the match: "raw", as the tower returns them, or
            "unit". Separation uses the directions of the means in both cases.
        pairs: Separation is the "sum" or the "mean" over the ordered pairs of predicted classes.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images of the current batch.
        optimizer: "sign" moves every parameter by ``lr`` against the sign of its gradient, "sgd" along the
            gradient, "adam" and "adamw" as ``torch.optim`` does. BATCLIP's own: "adamw" ("adam" for
            CIFAR-100-C).
        momentum: Of "sgd"; the others do not use it.
        weight_decay: Of the optimizer.
        seed: Has no effect.
        group: As for every method.
    """

    state_parameters = ("statistics", "optimizer")
    recordable = True
    joins_groups = True

    affine: Tensor

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 1e-3,
        match: float = 1.0,
        separation: float = 1.0,
        *,
        length: str = "raw",
        pairs: str = "sum",
        statistics: str = "source",
        optimizer: str = "adamw",
        momentum: float = 0.9,
        weight_decay: float = 0.01,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.lr = checks.number("lr", lr, 0)
        self.match = checks.number("match", match, 0)
        self.separation = checks.number("separation", separation, 0)
        self.length = checks.choice("length", length, LENGTHS)
        self.pairs = checks.choice("pairs", pairs, PAIRS)
        self.statistics = choose(statistics, classifier.encoder.base_statistics, alone=group is None)
        self.optimizer = checks.choice("optimizer", optimizer, OPTIMIZERS)
        self.momentum = checks.number("momentum", momentum, 0)
        self.weight_decay = checks.number("weight_decay", weight_decay, 0)
        self._weights = OnlineWeights(
            self, self.optimizer, self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )

    @property
    def batch_dependent(self) -> bool:
        """Whether predictions depend on the rest of the batch: only with the batch's statistics."""
        return self.statistics == "batch"

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Predict with the weights so far, then take one step."""
        embeddings, gradient, usable = loss_gradient(
            self.classifier,
            images,
            self.affine,
            usable,
            self._loss,
            statistics=self.statistics,
            normalize=False,
            peers=self.peers,
        )
        self._weights.step(gradient, taken=self.whole(usable).any())
        return Answer(self.classifier.logits(F.normalize(embeddings, dim=1)), None, usable)

    def _loss(self, embeddings: Tensor, usable: Tensor) -> Tensor:
        """The mean entropy, less the match of class means and texts, less the separation of the means."""
        clf = self.classifier
        usable = usable & embeddings.detach().isfinite().all(1)
        embeddings = torch.where(usable[:, None], embeddings, 1)  # not 0, which has no direction
        unit = F.normalize(embeddings, dim=1)
        logits = clf.logits(unit)
        entropies = mean_entropy(logits, usable) * usable.sum() / self.summed(usable.sum()).clamp_min(1)

        of_class = membership(self.whole(logits.detach().argmax(1)), self.whole(usable), clf.num_classes)
        images = of_class.sum(0)
        present = images > 0
        classes = present.sum()
        shares = of_class.to(embeddings.dtype) / images.clamp_min(1)
        means = shares.T @ self.whole_with_gradients(embeddings)
        matched = shares.T @ self.whole_with_gradients(unit) if self.length == "unit" else means
        match = (matched * clf.class_embeddings).sum() / classes.clamp_min(1)

        # The sum over ordered pairs of 1 less their cosine, by the length of the sum of unit vectors.
        directions = F.normalize(torch.where(present[:, None], means, 1), dim=1)
        total = torch.where(present[:, None], directions, 0).sum(0)
        separation = classes**2 - total.square().sum()
        if self.pairs == "mean":
            separation = separation / (classes * (classes - 1)).clamp_min(1)
        return entropies - self.match * match - self.separation * separation
