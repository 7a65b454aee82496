"""DeYO: entropy minimisation of images whose prediction depends on the shape of what they show.

Lee et al., "Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors",
ICLR 2024.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ramen.encoder.statistics import of_batch
from ramen.images.views import occlude_centre, shuffle_patches, shuffle_pixels
from ramen.methods._losses import LOSSES, OPINION_ENTROPY, probability_drop
from ramen.methods._method import Method
from ramen.methods._optim import FROZEN, OnlineWeights, trained_part
from ramen.methods._passes import Answer, Pass, Steps
from ramen.methods._registry import (
    LOSS,
    MARGIN,
    MOMENTUM,
    OPTIMIZER,
    STATISTICS,
    WITHOUT_DECAY,
    MethodInfo,
    field,
    register,
)
from ramen.utils import checks
from ramen.utils.numerics import pair_scores

TRANSFORMS = ("patch", "pixel", "occlusion")


@register(
    MethodInfo(
        name="deyo",
        title="DeYO: destroy your object, and minimise the entropy of what then changes",
        venue="ICLR 2024",
        paper="https://arxiv.org/abs/2403.07366",
        updates="weight and bias of all norm layers but those at the top, online: never reset",
        predicts_with="the forward pass before the update",
        batch_dependent=False,
        forwards=2,
        backwards=1,
        random=True,
        notes=(
            "from DeYO's paper and code: both filters, the weights, the transforms, SGD with momentum",
            "decided here: what is frozen goes by position: the last three blocks of a transformer and the "
            "norm after them, or the last stage of a ResNet, as in DeYO's code for its own models. That code "
            "goes by names, by which the last norm of a CLIP would be trained",
            "decided here: all images are destroyed and encoded, so that every batch takes the same passes; "
            "DeYO's code leaves out those that the first filter drops, with the same result",
            "decided here: random draws depend on the seed and the number of usable images so far. Pixels of "
            "a batch are shuffled alike, as in DeYO's code, and so depend on how the stream is cut",
            "occlusion covers the middle, half as high and half as wide as the image: 112 pixels of 224 in "
            "DeYO's code",
            "both filters let more images pass if the logit scale is large",
            "BatchNorm keeps its running statistics; DeYO's own code uses the batch's (statistics='batch'), "
            "in the second pass those of the images that the first filter has kept",
            OPINION_ENTROPY,
        ),
    )
)
class Deyo(Method):
    """Take one step per batch on the confident images whose answer suffers if their object is destroyed."""

    lr: float = field(
        1e-3,
        ge=0,
        doc="Step size. DeYO's own: 2.5e-4 (ResNet-50), 1e-3 (ViT, batches of 64), doubled for single "
        "images.",
    )
    margin: float = field(0.5, ge=0, doc=MARGIN)
    plpd_threshold: float = field(
        0.2,
        ge=-1,
        doc="The probability of the predicted class must fall by more than this if the object is "
        "destroyed. DeYO's own: 0.2 for mixed and wild streams, 0.3 for mild ones, 0.5 for data with "
        "spurious correlations.",
    )
    weight_margin: float = field(0.4, ge=0, doc="Entropies count as weights relative to this times ln C.")
    transform: str = field(
        "patch",
        choices=TRANSFORMS,
        doc='What destroys the object: "patch" shuffles patches of each image, "pixel" all pixels, '
        '"occlusion" covers the middle.',
    )
    patches: int = field(4, ge=1, doc="Patches along each side of an image.")
    frozen: str = field(
        "top",
        choices=FROZEN,
        doc='"top" to freeze the last three blocks and the norm after them, or the last stage of a '
        'ResNet; "none" to train all norm layers.',
    )
    statistics: str = STATISTICS
    optimizer: str = field("sgd", choices=WITHOUT_DECAY, saved=True, doc=OPTIMIZER)
    momentum: float = MOMENTUM
    loss: str = LOSS
    seed: int = field(0, ge=0, doc="Decides how patches and pixels are shuffled.")

    recordable = True
    joins_groups = True

    affine: Tensor
    seen: Tensor  # usable images so far

    def setup(self) -> None:
        classifier = self.classifier
        checks.integer("patches", self.patches, 1, min(classifier.image_size or (2**31,)))
        self._measure = LOSSES[self.loss]
        self._weights = OnlineWeights(
            self,
            self.optimizer,
            self.lr,
            momentum=self.momentum,
            trained=trained_part(classifier.encoder, self.frozen),
        )
        self.add_state("seen", torch.zeros((), dtype=torch.int64, device=classifier.device), minimum=0)

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Predict with the weights so far, then take one step on the images that both filters keep."""
        options: dict[str, Any] = {"of": "embeddings", "statistics": self.statistics}
        seen = yield Pass(images, self.affine, partial(self._loss, images), usable, **options)
        self._weights.step(seen.gradient, taken=self.whole(seen.counted).any())
        self.seen = self.seen + self.whole(seen.usable).sum()
        return Answer(self.classifier.logits(seen.embeddings), None, seen.usable)

    def _loss(self, images: Tensor, embeddings: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted mean entropy of the images that both filters keep, and which ones these are."""
        entropy_of_a_guess = math.log(self.classifier.num_classes)
        logits = self.classifier.logits(embeddings)
        usable = usable & logits.detach().isfinite().all(1)

        # 1. Confident images.
        entropies = self._measure(torch.where(usable[:, None], logits, 0))
        kept = usable & (entropies.detach() < self.margin * entropy_of_a_guess)

        # 2. Of these, the ones whose predicted class is less probable without their object.
        with torch.no_grad():
            destroyed = self._destroyed(images, usable)
            without = self.classifier.encode(
                destroyed, self.affine, statistics=of_batch(self.statistics, kept)
            )
            drop = probability_drop(logits, self.classifier.logits(without))
        kept = kept & (drop > self.plpd_threshold)

        # 3. The more confident and the larger the drop, the more an image counts.
        weights = torch.exp(self.weight_margin * entropy_of_a_guess - entropies.detach()) + torch.exp(drop)
        weights = torch.where(kept, weights, 0)  # before the product: a drop that is not finite has gradients
        return (weights * entropies).sum() / self.summed(kept.sum()).clamp_min(1), kept

    def _destroyed(self, images: Tensor, usable: Tensor) -> Tensor:
        """The images without their objects; random draws depend on the place in the stream."""
        if self.transform == "occlusion":
            return occlude_centre(images)
        if self.transform == "pixel":
            places = torch.arange(images[0, 0].numel(), device=images.device)
            return shuffle_pixels(images, pair_scores(self.seed, self.seen, places).argsort())
        numbers = self.seen + self.whole(usable).cumsum(0)
        numbers = numbers if self.peers is None else numbers[self.peers.own]
        places = torch.arange(self.patches**2, device=images.device)
        return shuffle_patches(images, pair_scores(self.seed, numbers, places).argsort(1), self.patches)
