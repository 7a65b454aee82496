"""Tent: entropy minimisation of the norm layers, online.

Wang et al., "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021.
"""

from torch import Tensor

from ramen.encoder.batchnorm_statistics import choose
from ramen.methods._answers import Answer
from ramen.methods._base import Method
from ramen.methods._info import MethodInfo
from ramen.methods._registry import register
from ramen.methods._steps import entropy_gradient, sign_step
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
            "SignSGD and one step per batch, as in the Ramen paper; Tent's own code uses SGD or Adam",
            "BatchNorm keeps its running statistics, as in Ramen's code; Tent's own code uses the batch's "
            "(statistics='batch'), which makes an image's prediction depend on the rest of its batch",
            "an image's prediction depends on earlier batches, and so on how the stream is split",
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
        seed: Has no effect.
        group: As for every method.
    """

    state_parameters = ("statistics",)
    recordable = True
    joins_groups = True

    affine: Tensor

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 2e-5,
        *,
        statistics: str = "source",
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.lr = checks.number("lr", lr, 0)
        self.statistics = choose(statistics, classifier.encoder.base_statistics, alone=group is None)
        self.add_state("affine", classifier.encoder.base)

    @property
    def batch_dependent(self) -> bool:
        """Whether predictions depend on the rest of the batch: only with the batch's statistics."""
        return self.statistics == "batch"

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Predict with the weights so far, then take one step."""
        logits, gradient, usable = entropy_gradient(
            self.classifier, images, self.affine, usable, statistics=self.statistics, peers=self.peers
        )
        self.affine = sign_step(self.affine, gradient, self.lr)
        return Answer(logits, None, usable)
