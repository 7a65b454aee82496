"""CoTTA: a student learns from an averaged teacher and forgets at random; here on the norm layers.

Wang et al., "Continual Test-Time Domain Adaptation", CVPR 2022.
"""

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ramen.images.augment import augment, draw
from ramen.methods._method import Method
from ramen.methods._optim import OnlineWeights
from ramen.methods._passes import Answer, Pass, Seen, Steps, give
from ramen.methods._registry import (
    AUTO,
    MEAN,
    MOMENTUM,
    OPTIMIZER,
    STATISTICS,
    STD,
    WITHOUT_DECAY,
    MethodInfo,
    field,
    register,
)
from ramen.methods._runner import receive
from ramen.methods._views import NormalisedPixels
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.numerics import pair_scores, plain_numerics

LOSSES = ("cross_entropy", "symmetric")
_THRESHOLDS = {10: 0.92, 100: 0.72, 1000: 0.1}  # published, by the number of classes
_QUANTILE, _BELOW = 0.05, 0.05  # how CoTTA's authors chose them, from the confidence on source images


@register(
    MethodInfo(
        name="cotta",
        title="CoTTA: continual test-time adaptation, on the norm layers",
        venue="CVPR 2022",
        paper="https://arxiv.org/abs/2203.13591",
        updates="weight and bias of all norm layers, online: a student by steps, some of whose weights go "
        "back at random, and a teacher as its average",
        predicts_with="the teacher before the update, over augmentations if the pretrained model is not sure",
        batch_dependent=True,
        forwards=34,
        backwards=1,
        random=True,
        notes=(
            "a variant: CoTTA trains all weights of a model, this one the norm layers alone",
            "from CoTTA's code: 32 augmentations, each drawn once for the batch; the averages of teacher and "
            "student; the order of step, average and return",
            "forward passes are the most: 3 for a batch of which the pretrained model is sure, 2 with "
            "threshold=0, which asks nobody. CoTTA's code for CIFAR-C takes 32 more without using them",
            "threshold is the published one for the nearest number of classes, 0.92 for 10, 0.72 for 100, "
            "0.1 for 1,000, found on supervised models: confidence also depends on the logit scale. "
            "remember_source(images) derives it from clean images as the authors did: the lower 5 % quantile "
            "of the confidence, less 0.05",
            "student and teacher start equal: until a first batch of which the pretrained model is not sure, "
            "and always with threshold=0, the gradient is zero. Decided here: rounding errors in it, which "
            "Adam and signed steps would blow up, are set to zero",
            "loss='cross_entropy' is that of the code for CIFAR-C, 'symmetric' that for ImageNet-C",
            "normalised images are brought back to [0, 1] for the augmentation, which needs the classifier's "
            "preprocessing or mean and std. Random draws depend on the seed and the number of usable images; "
            "the noise of an image also depends on its place in the batch",
            "BatchNorm keeps its running statistics; CoTTA's own code uses the batch's (statistics='batch')",
            "it has no way to share a stream: the noise is drawn for a whole batch",
        ),
    )
)
class Cotta(Method):
    """Predict with a teacher; train a student to agree with it, and let it forget a little at random."""

    lr: float = field(
        1e-3,
        ge=0,
        doc='The student\'s step size. CoTTA\'s own: 1e-3 with "adam" (CIFAR-C), 1e-2 with "sgd" '
        "(ImageNet-C).",
    )
    threshold: float = field(
        AUTO,
        ge=0,
        published=_THRESHOLDS,
        doc="The teacher averages over augmentations if the mean confidence of the pretrained model is "
        'below this; 0: never. "auto": chosen by the number of classes.',
    )
    augmentations: int = field(32, ge=1, doc="How many it averages over.")
    nu: float = field(1e-3, ge=0, le=1, doc="How far the teacher moves towards the student after each step.")
    forget: float = field(
        0.01,
        ge=0,
        le=1,
        doc="The probability that a weight of the student goes back to the pretrained one after a step. "
        "CoTTA's own: 0.01 (CIFAR-C), 0.001 (ImageNet-C).",
    )
    loss: str = field(
        "cross_entropy",
        choices=LOSSES,
        doc='"cross_entropy" of the student with the teacher\'s probabilities, or "symmetric" for its mean '
        "with that of the teacher with the student's.",
    )
    statistics: str = STATISTICS
    optimizer: str = field("adam", choices=WITHOUT_DECAY, saved=True, doc=OPTIMIZER)
    momentum: float = MOMENTUM
    mean: Sequence[float] | None = MEAN
    std: Sequence[float] | None = STD
    seed: int = field(0, ge=0, doc="Decides the augmentations and which weights go back.")

    student: Tensor
    teacher: Tensor
    bound: Tensor  # the threshold in use
    seen: Tensor  # usable images so far

    def setup(self) -> None:
        classifier = self.classifier
        self._normalised = NormalisedPixels(self.info.name, classifier, self.mean, self.std)
        self.mean, self.std = self._normalised.mean, self._normalised.std
        self._weights = OnlineWeights(self, self.optimizer, self.lr, momentum=self.momentum, name="student")
        self._agreement = partial(agreement, classifier, self.loss)
        self.add_state("teacher", classifier.encoder.base)
        self.add_state(
            "bound", torch.tensor(self.threshold, dtype=torch.float64, device="cpu"), minimum=0, kept=True
        )
        self.add_state("seen", torch.zeros((), dtype=torch.int64, device="cpu"), minimum=0)

    @property
    def batch_dependent(self) -> bool:
        """Whether predictions depend on the rest of the batch: on its confidence or its statistics."""
        return bool(self.bound > 0) or self.statistics == "batch"

    def passes(self) -> tuple[int, int]:
        """The most: the pretrained model's, the teacher's and the student's forward passes, and one back."""
        return (2 + self.augmentations if self.bound > 0 else 2), 1

    # -- before the stream --------------------------------------------------------------------------

    @plain_numerics()
    @torch.no_grad()
    def remember_source(self, images: Tensor, batch_size: int = 64) -> None:
        """Choose the threshold from the confidence of the pretrained model on these images.

        It is the lower 5 % quantile, less 0.05. It is saved with the state, and a reset keeps it.

        Args:
            images: Preprocessed images ``(N, 3, H, W)`` without a shift.
            batch_size: How many are encoded at a time.
        """
        images = self.classifier.check_images(images)
        found = []
        with self.one_caller:
            for batch in images.split(checks.integer("batch_size", batch_size, 1)):
                finite, usable, _ = receive(self, batch)
                seen = give(self.classifier, self._plain(finite, self.classifier.encoder.base, usable))
                found.append(seen.logits[seen.usable].softmax(1).amax(1))
            confidences = torch.cat(found).to("cpu", torch.float64)
            if not len(confidences):
                raise ValueError("images must hold at least one image with a finite answer, got none")
            self.bound = (confidences.quantile(_QUANTILE) - _BELOW).clamp_min(0)
            self.state.commit(vars(self))

    # -- the stream ---------------------------------------------------------------------------------

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Predict with the teacher, take a step of the student, average, let some weights go back."""
        zero_shot, target, usable, augmented = yield from self._targets(images, usable)
        options: dict[str, Any] = {"of": "embeddings", "statistics": self.statistics}
        seen = yield Pass(images, self.student, self._agreement, usable, target, **options)
        gradient, usable = seen.gradient, seen.usable
        # If both predict the same, the gradient is zero but for rounding, which Adam would take for one.
        differ = augmented | (self.student != self.teacher).any()
        taken = usable.any()
        self._weights.step(torch.where(differ, gradient, 0), taken)
        self.teacher = torch.where(taken, torch.lerp(self.teacher, self.student, self.nu), self.teacher)
        places = torch.arange(len(self.student), device=self.student.device)
        draws = pair_scores(self.seed, self.seen.to(places.device), places)
        back = taken & (draws < self.forget)
        self.student = torch.where(back, self.classifier.encoder.base, self.student)
        self.seen = self.seen + usable.sum().cpu()
        return Answer(target, zero_shot if self.statistics == "source" else None, usable)

    def _plain(self, images: Tensor, affine: Tensor, usable: Tensor) -> Pass:
        return Pass(images, affine, None, usable, statistics=self.statistics)

    def _targets(
        self, images: Tensor, usable: Tensor
    ) -> Generator[Pass, Seen, tuple[Tensor | None, Tensor, Tensor, bool]]:
        """The pretrained model's logits, if it was asked, the teacher's, the usable images, if augmented."""
        if not self.bound > 0:
            seen = yield self._plain(images, self.teacher, usable)
            return None, seen.logits, seen.usable, False
        seen = yield self._plain(images, self.classifier.encoder.base, usable)
        zero_shot, usable = seen.logits, seen.usable
        confidences = torch.where(usable, zero_shot.softmax(1).amax(1), 0)
        if confidences.sum() / usable.sum().clamp_min(1) >= self.bound.to(confidences):
            seen = yield self._plain(images, self.teacher, usable)
            return zero_shot, seen.logits, seen.usable, False
        generator, size = self.generator(place=int(self.seen)), (images.shape[2], images.shape[3])
        total = torch.zeros_like(zero_shot)
        for _ in range(self.augmentations):
            change = partial(augment, drawn=draw(size, generator))
            seen = yield self._plain(self._normalised.changed(images, change), self.teacher, usable)
            total, usable = total + seen.logits, seen.usable
        return zero_shot, total / self.augmentations, usable, True


def agreement(
    classifier: ZeroShotClassifier, kind: str, embeddings: Tensor, usable: Tensor, target: Tensor
) -> Tensor:
    """The mean cross-entropy between teacher and student."""
    logits = classifier.logits(embeddings)
    usable = usable & logits.detach().isfinite().all(1)
    log_p, log_q = (torch.where(usable[:, None], rows, 0).log_softmax(1) for rows in (logits, target))
    losses = -(log_q.exp() * log_p).sum(1)
    if kind == "symmetric":
        losses = 0.5 * losses - 0.5 * (log_p.exp() * log_q).sum(1)
    return torch.where(usable, losses, 0).sum() / usable.sum().clamp_min(1)
