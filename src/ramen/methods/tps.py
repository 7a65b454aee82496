"""TPS: the class embeddings are shifted for each image, so that the surest of its views agree.

Sui et al., "Just Shift It: Test-Time Prototype Shifting for Zero-Shot Generalization with Vision-Language
Models", WACV 2025.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.methods._losses import RANDOM_VIEWS
from ramen.methods._optim import AdamState, adam_step
from ramen.methods._registry import MethodInfo, field, register
from ramen.methods._views import ViewMethod, entropy_of_mean, surest

_DECAY = 0.01  # AdamW's own; without effect on the first step, which starts from 0
_NUMBERS_AT_ONCE = 1 << 22  # in the shifts of images that are treated together
SHIFTS = ("class", "shared")


@register(
    MethodInfo(
        name="tps",
        title="TPS: test-time prototype shifting",
        venue="WACV 2025",
        paper="https://arxiv.org/abs/2403.12952",
        updates="a shift of the class embeddings, for one image; then 0 again",
        predicts_with="the image itself, the first of the views, with the shifted class embeddings",
        batch_dependent=False,
        forwards=64,
        backwards=0,
        random=True,
        notes=(
            "from a public benchmark's code: 64 views, the 6 with the lowest entropies are chosen once, one "
            "step of AdamW on the entropy of their mean probability, lr 5e-3 for ImageNet and its variants, "
            "1e-3 elsewhere",
            "gradients go no further than the class embeddings: there is no backward pass of the encoder",
            "the first step of Adam moves every number by lr, whatever its gradient: the same step is larger "
            "for wider embeddings, by the square root of their width",
            RANDOM_VIEWS,
        ),
    )
)
class Tps(ViewMethod):
    """Shift the class embeddings to make the surest views agree, and answer the image with these."""

    lr: float = field(5e-3, ge=0, doc="AdamW's step size.")
    steps: int = field(1, ge=1, doc="How many steps.")
    kept: float = field(
        0.1,
        gt=0,
        le=1,
        doc="The share of the views that count, those with the lowest entropies; at least one view.",
    )
    shift: str = field(
        "class",
        choices=SHIFTS,
        doc='"class" for a shift of its own for each class, "shared" for one that all have in common.',
    )

    def from_views(self, embeddings: Tensor) -> Tensor:
        """A shift for each image, for a few images at a time."""
        at_once = max(1, _NUMBERS_AT_ONCE // self.classifier.class_embeddings.numel())
        return torch.cat([self._shifted_logits(part) for part in embeddings.split(at_once)])

    def _shifted_logits(self, embeddings: Tensor) -> Tensor:
        clf, texts = self.classifier, self.classifier.class_embeddings
        chosen = surest(embeddings, self.view_logits(embeddings), self.kept)

        def logits(views: Tensor, shift: Tensor) -> Tensor:
            return clf.logit_scale * views @ F.normalize(texts + shift, dim=2).mT

        rows = 1 if self.shift == "shared" else len(texts)
        shift = texts.new_zeros(len(embeddings), rows, texts.shape[1])
        state = AdamState.zero(shift)
        for _ in range(self.steps):
            with torch.enable_grad():
                shift = shift.detach().requires_grad_()
                loss = entropy_of_mean(logits(chosen, shift)).sum()  # each image has a shift of its own
                (gradient,) = torch.autograd.grad(loss, shift)
            shift, state = adam_step(shift.detach(), gradient, state, self.lr, decay=_DECAY)
        return logits(embeddings[:, :1], shift).squeeze(1)
