"""BATCLIP: class means of a batch move towards their texts and away from each other, in both towers.

Maharana, Zhang, Guo, "BATCLIP: Bimodal Online Test-Time Adaptation for CLIP", ICCV 2025.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.methods._losses import mean_entropy
from ramen.methods._method import Method
from ramen.methods._optim import OnlineWeights
from ramen.methods._passes import Answer, Pass, Steps
from ramen.methods._registry import (
    AUTO,
    MOMENTUM,
    OPTIMIZER_OR_DECAY,
    OPTIMIZERS,
    STATISTICS,
    MethodInfo,
    field,
    register,
)
from ramen.models import prompts
from ramen.models.classifier import MissingPartError
from ramen.models.text import AffinePrompts, AffineTextEncoder

TOWERS = (AUTO, "both", "image")
LENGTHS = ("raw", "unit")
PAIRS = ("sum", "mean")


@dataclass(frozen=True)
class _Texts:
    """Class embeddings ``(C, d)`` with the norm parameters of the text tower that they came from."""

    affine: Tensor
    embeddings: Tensor

    def gradient(self, of_embeddings: Tensor) -> Tensor:
        """The gradient of the norm parameters for one of the class embeddings."""
        (found,) = torch.autograd.grad(
            self.embeddings, self.affine, of_embeddings.view_as(self.embeddings), materialize_grads=True
        )
        return found


@register(
    MethodInfo(
        name="batclip",
        title="BATCLIP: class means matched with texts and separated, in both towers",
        venue="ICCV 2025",
        paper="https://arxiv.org/abs/2412.02837",
        updates="weight and bias of all norm layers of the image tower, and of the text tower if there is "
        "one, online: never reset",
        predicts_with="the forward pass before the update",
        batch_dependent=False,
        forwards=1,
        backwards=1,
        notes=(
            "BATCLIP trains both towers. If the classifier came without its text tower, texts are fixed "
            "vectors (towers='image'), which is a variant: according to its paper, separation, which no text "
            "takes part in, has most of the gain",
            "the passes are the image encoder's. With both towers the prompts of all classes also go through "
            "the text tower once forward and once back for each batch, which takes most of the time if there "
            "are many classes; they do not depend on the size of the batch. These steps are not recorded",
            "from BATCLIP's code: the three terms with equal weights, means over the batch alone, AdamW",
            "as in BATCLIP's code, means to be matched are of embeddings as the tower returns them, about 10 "
            "long for OpenAI's ViT-B/16: another tower's length is another weight. length='unit' takes unit "
            "embeddings",
            "as in BATCLIP's code, separation is a sum over pairs of predicted classes: it grows with the "
            "square of their number, and dominates from 100 classes on. pairs='mean' takes the mean",
            "with both towers BATCLIP's template, 'a photo of a {}.'; of several templates the average. With "
            "the image tower alone the classifier's own class embeddings",
            "BATCLIP is reset after each corruption, and so are single domains here; mixed streams are one",
            "BatchNorm keeps its running statistics; BATCLIP's own code uses the batch's "
            "(statistics='batch')",
        ),
    )
)
class Batclip(Method):
    """Take one step per batch on the entropy and on the mean embeddings of the predicted classes."""

    lr: float = field(
        1e-3, ge=0, doc="Step size. BATCLIP's own: 1e-3 (CIFAR-10-C), 5e-4 (CIFAR-100-C, ImageNet-C)."
    )
    match: float = field(1.0, ge=0, doc="Weight of the similarity of class means and texts.")
    separation: float = field(1.0, ge=0, doc="Weight of the distances between class means.")
    length: str = field(
        "raw",
        choices=LENGTHS,
        doc='Of the embeddings that are averaged for the match: "raw", as the tower returns them, or '
        '"unit". Separation uses the directions of the means in both cases.',
    )
    pairs: str = field(
        "sum",
        choices=PAIRS,
        doc='Separation is the "sum" or the "mean" over the ordered pairs of predicted classes.',
    )
    towers: str = field(
        AUTO,
        choices=TOWERS,
        saved=True,
        before="image",
        doc='"both" adapts the text tower too, and needs a classifier that has one, with gradients, as '
        'from open_clip and transformers; "image" leaves the texts as they are; "auto" is "both" if '
        "possible.",
    )
    templates: str | Sequence[str] = field(
        "single",
        doc="What the text tower is given if it is adapted: a name in `ramen.prompts.TEMPLATE_SETS` or "
        'strings with `{}`. The published one is "single".',
    )
    prompts_at_once: int = field(
        1000,
        ge=1,
        doc="How many prompts go through the text tower together, which decides the memory needed. If "
        "there are more, each goes through it once more for the gradients.",
    )
    statistics: str = STATISTICS
    optimizer: str = field("adamw", choices=OPTIMIZERS, saved=True, doc=OPTIMIZER_OR_DECAY)
    momentum: float = MOMENTUM
    weight_decay: float = field(0.01, ge=0, doc="Of the optimizer.")

    recordable = True
    joins_groups = True

    affine: Tensor
    text_affine: Tensor

    def setup(self) -> None:
        classifier = self.classifier
        self._weights = OnlineWeights(
            self, self.optimizer, self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        if not isinstance(self.templates, str | Sequence):
            raise TypeError(
                f"templates must be a name or strings with {{}}, got {type(self.templates).__name__}"
            )
        self.templates = prompts.check_templates(self.templates)
        encode_text = classifier.encode_text
        has_tower = isinstance(encode_text, AffineTextEncoder)
        if self.towers == AUTO:
            self.towers = "both" if has_tower else "image"
            self.chosen["towers"] = f"the classifier has {'its' if has_tower else 'no'} text tower to adapt"
        if self.towers == "both":
            self.recordable = False  # nobody knows what another library's text tower does on the host
            self._prompts = self._as_function(encode_text)
            self._text_weights = OnlineWeights(
                self,
                self.optimizer,
                self.lr,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                start=self._prompts.base.to(classifier.encoder.base),
                prefix="text_",
            )

    def _as_function(self, encode_text: object) -> AffinePrompts:
        """The prompts of all classes as a function of the text tower's norm parameters."""
        if not isinstance(encode_text, AffineTextEncoder):
            raise MissingPartError(
                "method 'batclip' with towers='both' adapts the text tower: load the model with "
                "ZeroShotClassifier.from_open_clip or from_transformers, give it an encode_text with a "
                "function affine_prompts, or adapt the image tower alone with towers='image'"
            )
        names = self.classifier.classes
        texts = [template.replace("{}", name) for name in names for template in self.templates]
        return encode_text.affine_prompts(texts, self.prompts_at_once)

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Predict with the weights so far, then take one step."""
        clf = self.classifier
        texts = self._texts() if self.towers == "both" else None
        learned = () if texts is None else (texts.embeddings.detach().flatten().requires_grad_(),)
        options: dict[str, Any] = {"of": "features", "statistics": self.statistics}
        seen = yield Pass(images, self.affine, self._loss, usable, *learned, **options)
        taken = self.whole(seen.usable).any()
        self._weights.step(seen.gradient, taken=taken)
        if texts is not None:
            self._text_weights.step(texts.gradient(seen.others), taken=taken)
        vectors = None if texts is None else texts.embeddings.detach()
        return Answer(clf.logits(F.normalize(seen.embeddings, dim=1), vectors), None, seen.usable)

    def _texts(self) -> "_Texts":
        """One forward pass of the text tower, with the class embeddings that it gives."""
        clf = self.classifier
        with torch.enable_grad():
            affine = self.text_affine.detach().requires_grad_()
            each = self._prompts(affine).to(clf.class_embeddings)
            return _Texts(affine, prompts.average_templates(each.view(clf.num_classes, -1, each.shape[-1])))

    def _loss(self, embeddings: Tensor, usable: Tensor, texts: Tensor | None = None) -> Tensor:
        """The mean entropy, less the match of class means and texts, less the separation of the means.

        ``texts`` are the class embeddings in one row; the classifier's own if not given.
        """
        clf = self.classifier
        vectors = clf.class_embeddings if texts is None else texts.view_as(clf.class_embeddings)
        usable = usable & embeddings.detach().isfinite().all(1)
        embeddings = torch.where(usable[:, None], embeddings, 1)  # not 0, which has no direction
        unit = F.normalize(embeddings, dim=1)
        logits = clf.logits(unit, vectors)
        entropies = mean_entropy(logits, usable) * usable.sum() / self.summed(usable.sum()).clamp_min(1)

        labels = self.whole(logits.detach().argmax(1))
        every = torch.arange(clf.num_classes, device=labels.device)
        of_class = (labels[:, None] == every) & self.whole(usable)[:, None]
        images = of_class.sum(0)
        present = images > 0
        classes = present.sum()
        shares = of_class.to(embeddings.dtype) / images.clamp_min(1)
        means = shares.T @ self.whole(embeddings, gradients=True)
        matched = shares.T @ self.whole(unit, gradients=True) if self.length == "unit" else means
        if self.peers is not None:  # each process has the whole match, but the gradients are added up
            vectors = torch.lerp(vectors.detach(), vectors, 1 / self.peers.size)
        match = (matched * vectors).sum() / classes.clamp_min(1)

        # The sum over ordered pairs of 1 less their cosine, by the length of the sum of unit vectors.
        directions = F.normalize(torch.where(present[:, None], means, 1), dim=1)
        total = torch.where(present[:, None], directions, 0).sum(0)
        separation = classes**2 - total.square().sum()
        if self.pairs == "mean":
            separation = separation / (classes * (classes - 1)).clamp_min(1)
        return entropies - self.match * match - self.separation * separation
