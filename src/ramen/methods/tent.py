"""Tent: entropy minimisation of the norm layers, online.

Wang et al., "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021.
"""

from typing import ClassVar

from torch import Tensor

from ramen.encoder.batchnorm_statistics import choose
from ramen.methods._answers import Answer
from ramen.methods._base import Method
from ramen.methods._info import MethodInfo
from ramen.methods._notes import OPINION_ENTROPY
from ramen.methods._online_weights import WITHOUT_DECAY, OnlineWeights
from ramen.methods._opinion_entropy import LOSSES
from ramen.methods._registry import register
from ramen.methods._steps import entropy_gradient
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.peers import Group


@register(
    MethodInfo(
        name="tent",
        title="Tent: fully test-time adaptation by entropy minimisation",
        venue="ICLR 2021",
        paper="https://arxiv.org/abs/2006.10726",
        updates="weight and bias of all norm layers, online: never reset within a stream",
        predicts_with="the forward pass before the update",
        batch_dependent=False,
        forwards=1,
        backwards=1,
        notes=(
            "SignSGD and one step per batch, as in the Ramen paper; Tent's own code uses SGD with a momentum "
            "of 0.9 (optimizer='sgd', lr=2.5e-4 for ImageNet-C) or Adam (optimizer='adam', lr=1e-3 for "
            "CIFAR-C)",
            "BatchNorm keeps its running statistics, as in Ramen's code; Tent's own code uses the batch's "
            "(statistics='batch'), which makes an image's prediction depend on the rest of its batch",
            "an image's prediction depends on earlier batches, and so on how the stream is split",
            OPINION_ENTROPY,
        ),
    )
)
class Tent(Method):
    """Take one entropy step per batch, on weights that all later batches share.

    Args:
        classifier: What it adapts.
        lr: Step size. The paper's: mixed streams 2e-5 (CIFAR-C), 1e-4 (ImageNet-C), 1e-6 (DomainNet).
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images of the current batch.
        optimizer: "sign" moves every parameter by ``lr`` against the sign of its gradient, "sgd" along the
            gradient, "adam" as ``torch.optim.Adam`` does.
        momentum: Of "sgd"; the others do not use it.
        loss: What is minimised: "entropy", or "come" for COME's opinion entropy, which hardly moves uncertain
            images.
        seed: Has no effect.
        group: As for every method.
    """

    state_parameters = ("statistics", "optimizer")
    later_parameters: ClassVar = {"optimizer": "sign"}
    recordable = True
    joins_groups = True

    affine: Tensor

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 2e-5,
        *,
        statistics: str = "source",
        optimizer: str = "sign",
        momentum: float = 0.9,
        loss: str = "entropy",
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.lr = checks.number("lr", lr, 0)
        self.statistics = choose(statistics, classifier.encoder.base_statistics, alone=group is None)
        self.optimizer = checks.choice("optimizer", optimizer, WITHOUT_DECAY)
        self.momentum = checks.number("momentum", momentum, 0)
        self.loss = checks.choice("loss", loss, LOSSES)
        self._weights = OnlineWeights(self, self.optimizer, self.lr, momentum=self.momentum)

    @property
    def batch_dependent(self) -> bool:
        """Whether predictions depend on the rest of the batch: only with the batch's statistics."""
        return self.statistics == "batch"

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Predict with the weights so far, then take one step."""
        logits, gradient, usable = entropy_gradient(
            self.classifier,
            images,
            self.affine,
            usable,
            measure=LOSSES[self.loss],
            statistics=self.statistics,
            peers=self.peers,
        )
        self._weights.step(gradient, taken=self.whole(usable).any())
        return Answer(logits, None, usable)
