"""TPS: the class embeddings are shifted for each image, so that the surest of its views agree.

Sui et al., "Just Shift It: Test-Time Prototype Shifting for Zero-Shot Generalization with Vision-Language
Models", WACV 2025.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.methods._adam import AdamState, adam_step
from ramen.methods._info import MethodInfo
from ramen.methods._notes import RANDOM_VIEWS
from ramen.methods._registry import register
from ramen.methods._views import ViewMethod, check_share, entropy_of_mean, surest
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.peers import Group

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
    """Shift the class embeddings to make the surest views agree, and answer the image with these.

    Args:
        classifier: What it adapts.
        lr: AdamW's step size.
        steps: How many steps.
        kept: The share of the views that count, those with the lowest entropies; at least one view.
        shift: "class" for a shift of its own for each class, "shared" for one that all have in common.
        views: How many views of each image, itself among them.
        smallest_crop: The least share of the image's area that a view shows.
        augmix: Severity of the changes that AugMix mixes into the crops, up to 10; 0 for crops as they are.
            TPT's own code: 1 for fine-grained data sets, else none.
        views_at_once: How many views go through the encoder together, which decides the memory needed.
        seed: Decides which views are drawn.
        group: As for every method.
    """

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 5e-3,
        steps: int = 1,
        *,
        kept: float = 0.1,
        shift: str = "class",
        views: int = 64,
        smallest_crop: float = 0.08,
        augmix: float = 0.0,
        views_at_once: int = 64,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(
            classifier,
            views=views,
            smallest_crop=smallest_crop,
            augmix=augmix,
            views_at_once=views_at_once,
            seed=seed,
            group=group,
        )
        self.lr = checks.number("lr", lr, 0)
        self.steps = checks.integer("steps", steps, 1)
        self.kept = check_share("kept", kept)
        self.shift = checks.choice("shift", shift, SHIFTS)

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
