"""EntMin: entropy minimisation on the current batch alone, the Ramen paper's "without Ramen".

Bao et al., "Ramen: Robust Test-Time Adaptation of Vision-Language Models with Active Sample Selection",
CVPR 2026.
"""

from torch import Tensor

from ramen.encoder.batchnorm_statistics import choose, of_batch
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
        name="entmin",
        title="Entropy minimisation on each batch, from the pretrained weights",
        venue="CVPR 2026",
        paper="https://arxiv.org/abs/2604.21728",
        updates="weight and bias of all norm layers, for one batch; then reset to the pretrained ones",
        predicts_with="a second forward pass after the update",
        batch_dependent=True,
        forwards=2,
        backwards=1,
        notes=(
            "the paper names it but does not define it; the learning rates, run time and memory use that it "
            "reports fit this definition and not an online one",
            "BatchNorm keeps its running statistics, as in Ramen's code; statistics='batch' uses those of "
            "the batch",
        ),
    )
)
class EntMin(Method):
    """Take one entropy step on the batch, then predict the batch with the new weights.

    Args:
        classifier: What it adapts.
        lr: Step size.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images of the current batch.
        seed: Has no effect.
        group: As for every method.
    """

    recordable = True
    joins_groups = True

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 1e-2,
        *,
        statistics: str = "source",
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.lr = checks.number("lr", lr, 0)
        self.statistics = choose(statistics, classifier.encoder.base_statistics, alone=group is None)

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Step from the pretrained weights, predict, forget."""
        clf = self.classifier
        before, gradient, usable = entropy_gradient(
            clf, images, clf.encoder.base, usable, statistics=self.statistics, peers=self.peers
        )
        adapted = sign_step(clf.encoder.base, gradient, self.lr)
        after = clf.logits(clf.encode(images, adapted, statistics=of_batch(self.statistics, usable)))
        return Answer(after, before if self.statistics == "source" else None, usable)
