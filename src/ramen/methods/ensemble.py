"""No adaptation: the zero-shot classifier, with the average of its templates.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.
"""

from torch import Tensor

from ramen.methods._answers import Answer
from ramen.methods._info import MethodInfo
from ramen.methods._pass_sharing import EmbeddingMethod
from ramen.methods._registry import register


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
class Ensemble(EmbeddingMethod):
    """The zero-shot classifier, unchanged.

    Args:
        classifier: What predicts.
        seed: Has no effect.
    """

    recordable = True
    joins_groups = True

    def from_embeddings(self, embeddings: Tensor, usable: Tensor) -> Answer:
        """Compare with the classifier's embeddings."""
        logits = self.classifier.logits(embeddings)
        return Answer(logits, logits, usable)
