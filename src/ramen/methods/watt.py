"""WATT-S: each batch adapts to one template after another, and the weights reached are averaged.

Osowiechi et al., "WATT: Weight Average Test-Time Adaptation of CLIP", NeurIPS 2024.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ramen.methods._base import check_classifier
from ramen.methods._contrastive import Contrastive, Steps
from ramen.methods._info import MethodInfo
from ramen.methods._registry import register
from ramen.methods._template_embeddings import template_embeddings
from ramen.models import prompts
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks


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

    Args:
        classifier: Must have an embedding for each class and template, or a text encoder.
        lr: Adam's step size; 1e-3 in the paper for all data sets, as are the next two.
        steps: L, steps with one template before the next.
        rounds: M, rounds over all templates; after each round the weights are averaged.
        templates: The classifier's own if not given; else a name in ``ramen.prompts.TEMPLATE_SETS`` ("watt"
            for the eight of WATT's code) or strings with ``{}`` for the class name.
        temperature: Temperature of the loss's targets; 0.01 is meant for CLIP's logit scale of 100.
        detach_targets: Take no gradient through the loss's targets.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images of the current batch.
        seed: Has no effect.
    """

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 1e-3,
        steps: int = 2,
        rounds: int = 5,
        *,
        templates: str | Sequence[str] | None = None,
        temperature: float = 0.01,
        detach_targets: bool = False,
        statistics: str = "source",
        seed: int = 0,
    ) -> None:
        self.templates = None if templates is None else prompts.check_templates(templates)
        embeddings = template_embeddings(self.info.name, check_classifier(classifier), self.templates)
        super().__init__(
            classifier,
            prompts.average_templates(embeddings),
            lr=lr,
            temperature=temperature,
            detach_targets=detach_targets,
            statistics=statistics,
            seed=seed,
        )
        self.steps = checks.integer("steps", steps, 1)
        self.rounds = checks.integer("rounds", rounds, 1)
        self._of_template = embeddings.transpose(0, 1)  # (templates, C, d)

    def walk(self, steps: Steps) -> None:
        """Template after template, each from where the last one led; after a round, their average."""
        for _ in range(self.rounds):
            reached = []
            for texts in self._of_template:
                for _ in range(self.steps):
                    steps.take(partial(_text_of_class, texts))
                reached.append(steps.affine)
            steps.affine = torch.stack(reached).mean(0)

    def passes(self) -> tuple[int, int]:
        """One of each a step, and one forward pass to predict."""
        steps = self.rounds * len(self._of_template) * self.steps
        return steps + 1, steps


def _text_of_class(texts: Tensor, embeddings: Tensor) -> Tensor:
    """The text embedding of each image's predicted class."""
    return texts[(embeddings @ texts.T).argmax(1)]
