"""Tent: entropy minimisation of the norm layers, online.

Wang et al., "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021.
"""

from torch import Tensor

from ramen.methods._losses import LOSSES, OPINION_ENTROPY
from ramen.methods._method import Method
from ramen.methods._optim import OnlineWeights
from ramen.methods._passes import Answer, Pass, Steps
from ramen.methods._registry import (
    LOSS,
    MOMENTUM,
    OPTIMIZER,
    STATISTICS,
    WITHOUT_DECAY,
    MethodInfo,
    field,
    register,
)


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
    """Take one entropy step per batch, on weights that all later batches share."""

    lr: float = field(
        2e-5,
        ge=0,
        doc="Step size. The paper's: mixed streams 2e-5 (CIFAR-C), 1e-4 (ImageNet-C), 1e-6 (DomainNet).",
    )
    statistics: str = STATISTICS
    optimizer: str = field("sign", choices=WITHOUT_DECAY, saved=True, before="sign", doc=OPTIMIZER)
    momentum: float = MOMENTUM
    loss: str = LOSS

    recordable = True
    joins_groups = True

    affine: Tensor

    def setup(self) -> None:
        self._weights = OnlineWeights(self, self.optimizer, self.lr, momentum=self.momentum)

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Predict with the weights so far, then take one step."""
        seen = yield Pass(images, self.affine, LOSSES[self.loss], usable, statistics=self.statistics)
        self._weights.step(seen.gradient, taken=self.whole(seen.usable).any())
        return Answer(seen.logits, None, seen.usable)
