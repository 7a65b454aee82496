"""No adaptation: the zero-shot classifier with a single template.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.
"""

from torch import Tensor

from ramen.methods._answers import Answer
from ramen.methods._info import MethodInfo
from ramen.methods._pass_sharing import EmbeddingMethod
from ramen.methods._registry import register
from ramen.models import prompts
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.utils.peers import Group


@register(
    MethodInfo(
        name="clip",
        title="CLIP with a single template",
        venue="ICML 2021",
        paper="https://arxiv.org/abs/2103.00020",
        updates="nothing",
        predicts_with="the one forward pass",
        batch_dependent=False,
        forwards=1,
        backwards=0,
        notes=(
            "zero_shot_logits are those of the classifier's own class embeddings, as for every method",
            "a classifier with one embedding per class and no text encoder predicts with that embedding",
        ),
    )
)
class Clip(EmbeddingMethod):
    """Zero-shot classification with one prompt per class.

    Args:
        classifier: Must know its templates or have a text encoder, unless it has one embedding per class.
        template: The prompt.
        seed: Has no effect.
        group: As for every method.
    """

    recordable = True
    joins_groups = True

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        template: str = prompts.SINGLE[0],
        *,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        (self.template,) = prompts.check_templates([template])
        self._embeddings = _single_template(classifier, self.template)

    def from_embeddings(self, embeddings: Tensor, usable: Tensor) -> Answer:
        """Compare with the single template's embeddings."""
        logits = self.classifier.logits(embeddings, self._embeddings)
        return Answer(logits, self.classifier.logits(embeddings), usable)


def _single_template(classifier: ZeroShotClassifier, template: str) -> Tensor:
    embeddings = classifier.embed_templates([template])
    if embeddings is not None:
        return embeddings[:, 0]
    if classifier.templates is None and template == prompts.SINGLE[0]:
        if classifier.template_embeddings is None:
            return classifier.class_embeddings
        if classifier.template_embeddings.shape[1] == 1:
            return classifier.template_embeddings[:, 0]
    raise MissingPartError(
        f"method 'clip' needs the embeddings of template {template!r}: give the ZeroShotClassifier the names "
        "of its templates with (C, templates, d) embeddings (templates=...), a text encoder "
        "(encode_text=...), or one embedding a class"
    )
