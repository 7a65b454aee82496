"""No adaptation: the zero-shot classifier, with the average of its templates.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.
"""

from torch import Tensor

from ramen.methods._method import Method
from ramen.methods._passes import Answer, Pass, Steps
from ramen.methods._registry import MethodInfo, register


@register(
    MethodInfo(
        name="ensemble",
        title="CLIP with the classifier's own class embeddings, by default the average of seven templates",
        venue="ICML 2021",
        paper="https://arxiv.org/abs/2103.00020",
        updates="nothing",
        predicts_with="the one forward pass",
        batch_dependent=False,
        forwards=1,
        backwards=0,
    )
)
class Ensemble(Method):
    """The zero-shot classifier, unchanged."""

    recordable = True
    joins_groups = True

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Compare with the classifier's embeddings."""
        seen = yield Pass(images)
        return Answer(seen.logits, seen.logits, usable)
