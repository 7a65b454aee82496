"""CLIP-OT: each batch is assigned to the classes by optimal transport, template after template.

Mishra et al., "CLIP-OT", later titled "Semantic Anchor Transport", arXiv 2411.17002.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ramen.methods._losses import template_embeddings
from ramen.methods._method import Method
from ramen.methods._optim import OnlineWeights
from ramen.methods._passes import Answer, Pass, Steps
from ramen.methods._registry import (
    MOMENTUM,
    OPTIMIZER_OR_DECAY,
    OPTIMIZERS,
    STATISTICS,
    MethodInfo,
    field,
    register,
)
from ramen.models import prompts

PREDICTIONS = ("average", "template")


@register(
    MethodInfo(
        name="clipot",
        title="CLIP-OT: optimal transport of batches to the classes, template after template",
        venue="arXiv 2024",
        paper="https://arxiv.org/abs/2411.17002",
        updates="weight and bias of all norm layers, online: never reset",
        predicts_with="a last forward pass after a step per template, with the averaged templates",
        batch_dependent=True,
        forwards=8,
        backwards=7,
        notes=(
            "from CLIP-OT's code: one step per template, the rounds of Sinkhorn's algorithm, AdamW, the "
            "weights carried from template to template and from batch to batch",
            "logits are divided by epsilon=0.7 before the transport: in CLIP-OT's code 0.01 * 0.7 divides "
            "cosines, which presumes a logit scale of 100",
            "decided here: the assignments are constants (detach_targets=False lets gradients through them, "
            "as CLIP-OT's code does), and the rounds start from each image's softmax, on which its largest "
            "logit has no effect: without that, large logits overflow",
            "as in CLIP-OT's code, predictions in the loss use the averaged templates, and the template of a "
            "step only decides the assignments; predictions='template' uses it for both. The code uses the "
            "first template alone for its very first batch, which is left out",
            "decided here: averaged embeddings have unit length, CLIP-OT's code leaves them shorter",
            "every class gets the same share of a batch: that harms if classes are unbalanced, or if there "
            "are more of them than images",
            "decided here: the classifier's own templates, seven by default; CLIP-OT has eight "
            "(templates='watt' are those of WATT). The number of passes is for seven",
            "CLIP-OT's code adapts on over all corruptions; here single domains are reset, mixed streams are "
            "one",
            "BatchNorm keeps its running statistics; statistics='batch' uses those of the batch",
        ),
    )
)
class Clipot(Method):
    """Take one step per template on the cross-entropy with a balanced assignment of the batch."""

    lr: float = field(1e-4, ge=0, doc="Step size.")
    epsilon: float = field(
        0.7,
        gt=0,
        doc="What logits are divided by before the transport; the larger, the softer the assignment.",
    )
    rounds: int = field(3, ge=1, doc="Of Sinkhorn's algorithm.")
    templates: str | Sequence[str] | None = field(
        None,
        doc="The classifier's own if not given; else a name in `ramen.prompts.TEMPLATE_SETS` or strings "
        "with `{}` for the class name.",
    )
    predictions: str = field(
        "average",
        choices=PREDICTIONS,
        doc='The texts that predictions in the loss are made with: "average" of the templates, or the '
        '"template" of the step.',
    )
    detach_targets: bool = field(True, doc="Take no gradient through the assignments.")
    statistics: str = STATISTICS
    optimizer: str = field("adamw", choices=OPTIMIZERS, saved=True, doc=OPTIMIZER_OR_DECAY)
    momentum: float = MOMENTUM
    weight_decay: float = field(0.01, ge=0, doc="Of the optimizer.")

    recordable = True
    joins_groups = True

    affine: Tensor

    def setup(self) -> None:
        self.templates = None if self.templates is None else prompts.check_templates(self.templates)
        embeddings = template_embeddings(self.info.name, self.classifier, self.templates)
        self._weights = OnlineWeights(
            self, self.optimizer, self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        self._average = prompts.average_templates(embeddings)
        self._of_template = embeddings.transpose(0, 1)  # (templates, C, d)

    def passes(self) -> tuple[int, int]:
        """One of each per template, and one forward pass to predict."""
        return len(self._of_template) + 1, len(self._of_template)

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """A step per template, each from where the last one led; then predict."""
        options: dict[str, Any] = {"of": "embeddings", "statistics": self.statistics}
        for texts in self._of_template:
            seen = yield Pass(images, self.affine, self._loss, usable, texts, **options)
            images, usable = seen.images, seen.usable
            self._weights.step(seen.gradient, taken=self.whole(usable).any())
        seen = yield Pass(images, self.affine, None, usable, **options)
        return Answer(self._logits(seen.embeddings, self._average), None, usable)

    def _logits(self, embeddings: Tensor, texts: Tensor) -> Tensor:
        return self.classifier.logit_scale * embeddings @ texts.T

    def _loss(self, embeddings: Tensor, usable: Tensor, texts: Tensor) -> Tensor:
        """The mean cross-entropy of the global batch with its assignment to the classes."""
        usable = usable & embeddings.detach().isfinite().all(1)
        embeddings = self.whole(torch.where(usable[:, None], embeddings, 0), gradients=True)
        usable = self.whole(usable)
        targets = assignment(self._logits(embeddings, texts) / self.epsilon, usable, self.rounds)
        targets = targets.detach() if self.detach_targets else targets
        predicted = texts if self.predictions == "template" else self._average
        losses = -(targets * self._logits(embeddings, predicted).log_softmax(1)).sum(1)
        return torch.where(usable, losses, 0).sum() / usable.sum().clamp_min(1)


def assignment(scores: Tensor, usable: Tensor, rounds: int) -> Tensor:
    """Probabilities ``(B, C)`` of the usable images that give every class about the same share of them.

    Sinkhorn's algorithm: in each round classes, then images, are normalised. Rows that are not usable take no
    part.

    >>> assignment(torch.tensor([[3.0, 0.0], [2.0, 0.0]]), torch.tensor([True, True]), 50).round(decimals=2)
    tensor([[0.6200, 0.3800],
            [0.3800, 0.6200]])
    """
    nobody = torch.finfo(scores.dtype).min / 2  # not -inf, of which gradients are not finite
    logs = scores.log_softmax(1)
    for _ in range(rounds):
        logs = logs - torch.where(usable[:, None], logs, nobody).logsumexp(0, keepdim=True)
        logs = logs.log_softmax(1)
    return logs.exp()
