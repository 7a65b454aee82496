"""EntMin: entropy minimisation on the current batch alone, the Ramen paper's "without Ramen".

Bao et al., "Ramen: Robust Test-Time Adaptation of Vision-Language Models with Active Sample Selection",
CVPR 2026.
"""

from torch import Tensor

from ramen.methods._losses import entropy
from ramen.methods._method import Method
from ramen.methods._optim import sign_step
from ramen.methods._passes import Answer, Pass, Steps
from ramen.methods._registry import STATISTICS_OF_A_BATCH, MethodInfo, field, register


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
    """Take one entropy step on the batch, then predict the batch with the new weights."""

    lr: float = field(1e-2, ge=0, doc="Step size.")
    statistics: str = STATISTICS_OF_A_BATCH

    recordable = True
    joins_groups = True

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Step from the pretrained weights, predict, forget."""
        base, statistics = self.classifier.encoder.base, self.statistics
        seen = yield Pass(images, base, entropy, usable, statistics=statistics)
        adapted = sign_step(base, seen.gradient, self.lr)
        after = Pass(images, adapted, usable=seen.usable, statistics=statistics)
        return Answer(after, seen.logits if statistics == "source" else None, seen.usable)
