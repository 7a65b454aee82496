"""No adaptation: the zero-shot classifier with a single template.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.
"""

from torch import Tensor

from ramen.methods._method import Method
from ramen.methods._passes import Answer, Pass, Steps
from ramen.methods._registry import MethodInfo, field, register
from ramen.models import prompts
from ramen.models.classifier import MissingPartError, ZeroShotClassifier


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
class Clip(Method):
    """Zero-shot classification with one prompt per class."""

    template: str = field(prompts.SINGLE[0], doc="The prompt.")

    recordable = True
    joins_groups = True

    def setup(self) -> None:
        (self.template,) = prompts.check_templates([self.template])
        self._embeddings = _single_template(self.classifier, self.template)

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Compare with the single template's embeddings."""
        seen = yield Pass(images)
        return Answer(self.classifier.logits(seen.embeddings, self._embeddings), seen.logits, usable)


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
