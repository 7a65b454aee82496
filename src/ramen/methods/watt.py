"""WATT-S: each batch adapts to one template after another, and the weights reached are averaged.

Osowiechi et al., "WATT: Weight Average Test-Time Adaptation of CLIP", NeurIPS 2024.
"""

from collections.abc import Generator, Sequence
from functools import partial

import torch
from torch import Tensor

from ramen.methods._contrastive import Contrastive, Walk
from ramen.methods._losses import template_embeddings
from ramen.methods._passes import Pass, Seen
from ramen.methods._registry import MethodInfo, field, register
from ramen.models import prompts


@register(
    MethodInfo(
        name="watt",
        title="WATT-S: weight averaging over templates, sequential",
        venue="NeurIPS 2024",
        paper="https://arxiv.org/abs/2406.13875",
        updates="weight and bias of all norm layers, for one batch; then reset to the pretrained ones",
        predicts_with="a last forward pass with the averaged weights",
        batch_dependent=True,
        forwards=71,
        backwards=70,
        notes=(
            "from the Ramen paper: Adam, lr 1e-3, two steps per template, five rounds, for all data sets; "
            "seven templates; results for a ResNet",
            "from WATT's code: the contrastive loss of CLIPArTT, gradients through its targets too "
            "(detach_targets=True treats them as constant), Adam's moments kept between templates and "
            "rounds, fresh weights and moments for every batch, prediction with the averaged templates",
            "decided here: the classifier's own templates, seven by default; WATT's code has eight, two of "
            "them without a full stop (templates='watt')",
            "decided here: BatchNorm keeps its running statistics and its weight and bias adapt; WATT's code "
            "handles LayerNorm only. statistics='batch' uses the batch's, as CLIPArTT's code does",
            "one forward pass gives both pseudo-classes and loss; WATT's code runs two at the same weights, "
            "so it counts 141 forward and 70 backward passes, with equal results",
            "the number of passes is for seven templates; a step costs one of each",
        ),
    )
)
class Watt(Contrastive):
    """Take contrastive steps on each batch, template after template, and average the weights reached.

    It keeps no state between batches: every batch starts from the pretrained weights.
    """

    steps: int = field(2, ge=1, doc="L, steps with one template before the next.")
    rounds: int = field(
        5, ge=1, doc="M, rounds over all templates; after each round the weights are averaged."
    )
    templates: str | Sequence[str] | None = field(
        None,
        doc='The classifier\'s own if not given; else a name in `ramen.prompts.TEMPLATE_SETS` ("watt" for '
        "the eight of WATT's code) or strings with `{}` for the class name.",
    )

    def setup(self) -> None:
        templates = None if self.templates is None else prompts.check_templates(self.templates)
        embeddings = template_embeddings(self.info.name, self.classifier, templates)
        self.templates, self.texts = templates, prompts.average_templates(embeddings)
        self._of_template = embeddings.transpose(0, 1)  # (templates, C, d)

    def walk(self, steps: Walk) -> Generator[Pass, Seen, None]:
        """Template after template, each from where the last one led; after a round, their average."""
        for _ in range(self.rounds):
            reached = []
            for texts in self._of_template:
                for _ in range(self.steps):
                    yield from steps.step(partial(_text_of_class, texts))
                reached.append(steps.affine)
            steps.affine = torch.stack(reached).mean(0)

    def passes(self) -> tuple[int, int]:
        """One of each a step, and one forward pass to predict."""
        steps = self.rounds * len(self._of_template) * self.steps
        return steps + 1, steps


def _text_of_class(texts: Tensor, embeddings: Tensor) -> Tensor:
    """The text embedding of each image's predicted class."""
    return texts[(embeddings @ texts.T).argmax(1)]
