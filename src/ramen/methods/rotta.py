"""RoTTA: a student trained on augmented images of a balanced memory, and a slow teacher that predicts.

Yuan et al., "Robust Test-Time Adaptation in Dynamic Scenarios", CVPR 2023.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from ramen.encoder.statistics import Statistics
from ramen.images.augment import augment, draw
from ramen.memory.base import expect_at_least
from ramen.memory.images import ImageMemory
from ramen.memory.policies import TimelyBalanced
from ramen.methods._method import Method
from ramen.methods._optim import OnlineWeights
from ramen.methods._passes import Answer, Pass, Steps, refuse_overflowing
from ramen.methods._registry import (
    MEAN,
    MOMENTUM,
    OPTIMIZER,
    STD,
    WITHOUT_DECAY,
    MethodInfo,
    field,
    has_batchnorm,
    register,
)
from ramen.methods._views import NormalisedPixels
from ramen.models.classifier import ZeroShotClassifier

_STUDENTS, _TEACHERS = "student_statistics", "teacher_statistics"


@register(
    MethodInfo(
        name="rotta",
        title="RoTTA: robust test-time adaptation in dynamic scenarios",
        venue="CVPR 2023",
        paper="https://arxiv.org/abs/2303.13899",
        updates="weight and bias of all norm layers, online: a student by steps, a teacher as its average",
        predicts_with="the teacher's forward pass before the update",
        batch_dependent=False,
        forwards=3,
        backwards=1,
        batch_sized=("memory", "interval"),
        random=True,
        notes=(
            "from the Ramen paper: SignSGD and its learning rates; RoTTA's own code uses Adam "
            "(optimizer='adam', lr=1e-3)",
            "from RoTTA's paper and code: the memory's rules, the loss with its weights by age, the "
            "augmentation, an update after every 64 images, nu=0.001",
            "open in the Ramen paper: the size of the memory. 64 is RoTTA's own; the batch size, which the "
            "paper states for NOTE only, is the other reading (memory=100, or 50 for ViT-L/14)",
            "also open: how normalised images are augmented. Here they are brought back to [0, 1] and "
            "normalised again, which needs the classifier's preprocessing or mean and std",
            "a batch is predicted as a whole before the updates that fall into it",
            "decided here: all norm layers are trained. RoTTA's code trains BatchNorm layers alone, and "
            "would change nothing in a ViT",
            "BatchNorm keeps its running statistics, as in Ramen's code; statistics='robust' is RoTTA's own: "
            "stored statistics, of which each pass over the memory replaces the share alpha=0.05 by its own. "
            "As in RoTTA's code, student and teacher store separate statistics, the student's from augmented "
            "images and the teacher's from plain ones; the teacher's are not an average of the student's, "
            "and predicting a batch does not change them",
            "random draws depend on the seed and the number of images so far",
        ),
    )
)
class Rotta(Method):
    """Predict with a teacher; train a student to agree with it on augmented images of a memory."""

    lr: float = field(
        1e-2,
        ge=0,
        doc="The student's step size. The paper's: mixed streams 1e-2 (CIFAR-C, ImageNet-C), 1e-5 "
        "(DomainNet); single domains 2e-2 and 1e-4.",
    )
    memory: int = field(64, ge=1, saved=True, doc="How many images the memory holds.")
    interval: int = field(None, ge=1, doc="Images between updates; as many as the memory holds if not given.")
    nu: float = field(
        1e-3, ge=0, le=1, doc="How far the teacher moves towards the student after each update."
    )
    timeliness: float = field(1.0, ge=0, doc="Weight of age when the memory chooses what to replace.")
    uncertainty: float = field(1.0, ge=0, doc="Weight of entropy in that choice.")
    statistics: str = field(
        "source",
        choices=("source", "robust"),
        saved=True,
        check=has_batchnorm,
        doc='What BatchNorm layers normalise with: "source" for their running statistics, "robust" for '
        "stored ones that follow the memory.",
    )
    alpha: float = field(
        0.05,
        ge=0,
        le=1,
        doc="With robust statistics, how far the stored ones move towards those of the memory per update.",
    )
    optimizer: str = field("sign", choices=WITHOUT_DECAY, saved=True, before="sign", doc=OPTIMIZER)
    momentum: float = MOMENTUM
    mean: Sequence[float] | None = MEAN
    std: Sequence[float] | None = STD
    seed: int = field(0, ge=0, doc="Decides the augmentation.")

    joins_groups = True

    student: Tensor
    teacher: Tensor
    arrived: Tensor  # images offered to the memory

    def setup(self) -> None:
        classifier = self.classifier
        self.interval = self.memory if self.interval is None else self.interval
        self._normalised = NormalisedPixels(self.info.name, classifier, self.mean, self.std)
        self.mean, self.std = self._normalised.mean, self._normalised.std
        encoder = classifier.encoder
        self._weights = OnlineWeights(self, self.optimizer, self.lr, momentum=self.momentum, name="student")
        self.add_state("teacher", encoder.base)
        for name in self._stored:
            self.add_state(name, encoder.base_statistics)
        policy = TimelyBalanced(self.memory, classifier.num_classes, self.timeliness, self.uncertainty)
        self._remembered = self.add_memory(
            ImageMemory(
                policy,
                self.memory,
                classifier.dtype,
                classifier.device,
                classifier.image_size,
                self.peers,
            )
        )
        self.add_state("arrived", torch.zeros((), dtype=torch.int64, device="cpu"), minimum=0)
        # What stays in the memory is decided on the host: on a GPU the passes are recorded, not the step.
        self._lesson = self._recorder.record(partial(_lesson, classifier))

    @property
    def _stored(self) -> tuple[str, ...]:
        """The names of the stored statistics, if there are any."""
        return (_STUDENTS, _TEACHERS) if self.statistics == "robust" else ()

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Predict with the teacher, offer the batch to the memory, update after every ``interval`` images."""
        usable = usable & self._remembered.storable(images)
        statistics = getattr(self, _TEACHERS) if self._stored else "source"
        seen = yield Pass(images, self.teacher, None, usable, statistics=statistics)
        logits, usable = seen.logits, seen.usable
        probabilities = logits.softmax(1)
        entropies = -(probabilities * torch.log(probabilities + 1e-6)).sum(1)

        labels = torch.where(usable, logits.argmax(1), -1)
        # one transfer to the host
        offered = self.whole(torch.stack([labels.double(), entropies.double()], 1)).tolist()
        arrived = int(self.arrived)  # counting with tensors would take longer than deciding what stays
        for index, (label, entropy) in enumerate(offered):
            if label < 0:
                continue
            self._remembered.offer(images, index, int(label), entropy)
            arrived += 1
            if arrived % self.interval == 0:
                self.arrived = self.arrived.new_tensor(arrived)
                self._update()
        self.arrived = self.arrived.new_tensor(arrived)
        self._remembered.settle()
        return Answer(logits, None, usable)

    def _update(self) -> None:
        """One step of the student on the whole memory; the teacher follows."""
        images = self._remembered.images
        every = torch.ones(len(images), dtype=torch.bool, device=images.device)
        gradient, statistics = self._learn(images, every)
        if not _finite(statistics):  # spoiled by an image that overflows by now
            gradient, statistics = self._learn(*refuse_overflowing(self.classifier, images, every))
            if not _finite(statistics):
                return
        for name, value in statistics.items():
            setattr(self, name, value)
        self._weights.step(gradient)
        self.teacher = (1 - self.nu) * self.teacher + self.nu * self.student

    def _learn(self, images: Tensor, counted: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The student's gradient on the images that count, and the statistics of both passes."""
        ages = torch.tensor(self._remembered.policy.ages, dtype=self.student.dtype, device=images.device)
        stored = [getattr(self, name) for name in self._stored]
        gradient, *mixed = self._lesson(
            images,
            self._augmented(images),
            counted,
            torch.sigmoid(-ages / self.memory),  # exp(-age) / (1 + exp(-age))
            self.student,
            self.teacher,
            *stored,
            share=self.alpha,
        )
        averaged = [self.averaged(one) for one in mixed]
        return self.averaged(gradient), dict(zip(self._stored, averaged, strict=True))

    def _augmented(self, images: Tensor) -> Tensor:
        drawn = draw((images.shape[2], images.shape[3]), self.generator(place=int(self.arrived)))
        return self._normalised.changed(images, lambda pixels: augment(pixels, drawn))

    def _check_content(self, content: Mapping[str, Tensor]) -> None:
        """Raise ValueError if the memory holds more images than were offered, or a variance is negative."""
        if content["arrived"] < len(content["images"]):
            raise ValueError("arrived in the state must be at least the number of images held")
        for name in self._stored:
            expect_at_least(f"the variances of {name}", content[name][1], 0)


def _lesson(
    classifier: ZeroShotClassifier,
    images: Tensor,
    augmented: Tensor,
    counted: Tensor,
    weights: Tensor,
    student: Tensor,
    teacher: Tensor,
    *stored: Tensor,
    share: float,
) -> tuple[Tensor, ...]:
    """The student's gradient; then, if statistics are stored, the student's and teacher's new ones."""
    seen = [Statistics(counted, share=share, stored=one) for one in stored]
    students, teachers = seen or (None, None)
    target = classifier.logits(classifier.encode(images, teacher, statistics=teachers)).softmax(1)
    # an image that overflows by now teaches nothing
    target = torch.where(target.isfinite() & counted[:, None], target, 0)
    with torch.enable_grad():
        student = student.detach().requires_grad_()
        log_p = classifier.logits(classifier.encode(augmented, student, statistics=students)).log_softmax(1)
        loss = (weights * -(target * log_p).sum(1)).mean()
        gradient = classifier.gradient(loss, student)
    return gradient, *(statistics.mixed for statistics in seen)


def _finite(tensors: dict[str, Tensor]) -> bool:
    return all(tensor.isfinite().all() for tensor in tensors.values())
