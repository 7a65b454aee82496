"""RoTTA: a student trained on augmented images of a balanced memory, and a slow teacher that predicts.

Yuan et al., "Robust Test-Time Adaptation in Dynamic Scenarios", CVPR 2023.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ramen.encoder.batchnorm_statistics import Statistics, choose
from ramen.images.augment import augment, draw
from ramen.memory.image_store import ImageStore
from ramen.memory.row_table import expect
from ramen.memory.timely_balanced import Cstu
from ramen.methods._base import Answer, Method, MethodInfo
from ramen.methods._registry import register
from ramen.methods._state import expect_names, saved_affine, saved_statistics
from ramen.methods._steps import refuse_overflowing, sign_step
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.utils import checks

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
        notes=(
            "from the Ramen paper: SignSGD and its learning rates",
            "from RoTTA's paper and code: the memory's rules, the loss with its weights by age, the "
            "augmentation, an update after every 64 images, nu=0.001",
            "open in the Ramen paper: the size of the memory. 64 is RoTTA's own; the batch size, which the "
            "paper states for NOTE only, is the other reading (memory=100, or 50 for ViT-L/14)",
            "also open: how normalised images are augmented. Here they are brought back to [0, 1] and "
            "normalised again, which needs the classifier's preprocessing or mean and std",
            "a batch is predicted as a whole before the updates that fall into it",
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
    """Predict with a teacher; train a student to agree with it on augmented images of a memory.

    Args:
        classifier: What it adapts.
        lr: The student's step size. The paper's: mixed streams 1e-2 (CIFAR-C, ImageNet-C), 1e-5 (DomainNet);
            single domains 2e-2 and 1e-4.
        memory: How many images the memory holds.
        interval: Images between updates; as many as the memory holds if not given.
        nu: How far the teacher moves towards the student after each update.
        timeliness: Weight of age when the memory chooses what to replace.
        uncertainty: Weight of entropy in that choice.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "robust" for
            stored ones that follow the memory.
        alpha: With robust statistics, how far the stored ones move towards those of the memory per update.
        mean: Mean per channel that was subtracted from the images; from the classifier's preprocessing if
            not given.
        std: Standard deviation per channel that the images were divided by; likewise.
        seed: Decides the augmentation.
    """

    state_parameters = ("memory", "statistics")

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 1e-2,
        memory: int = 64,
        interval: int | None = None,
        nu: float = 1e-3,
        *,
        timeliness: float = 1.0,
        uncertainty: float = 1.0,
        statistics: str = "source",
        alpha: float = 0.05,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(classifier, seed=seed)
        self.lr = checks.number("lr", lr, 0)
        self.memory = checks.integer("memory", memory, 1)
        self.interval = self.memory if interval is None else checks.integer("interval", interval, 1)
        self.nu = checks.number("nu", nu, 0)
        if self.nu > 1:
            raise ValueError(f"nu must be between 0 and 1, got {nu}")
        self.timeliness = checks.number("timeliness", timeliness, 0)
        self.uncertainty = checks.number("uncertainty", uncertainty, 0)
        self.statistics = choose(statistics, classifier.encoder.base_statistics, ("source", "robust"))
        self.alpha = checks.number("alpha", alpha, 0)
        if self.alpha > 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha}")
        self.mean, self.std = _pixel_statistics(classifier, mean, std)
        self._student = self._teacher = classifier.encoder.base
        self._statistics = self._pretrained_statistics()  # stored ones, by name; none of them by default
        self._memory = Cstu(self.memory, classifier.num_classes, self.timeliness, self.uncertainty)
        self._images = ImageStore(self.memory, classifier.dtype, classifier.device, classifier.image_size)
        self._arrived = 0  # images offered to the memory

    def adapt(self, images: Tensor, usable: Tensor, tags: Tensor | None, want_support: bool) -> Answer:
        """Predict with the teacher, offer the batch to the memory, update after every ``interval`` images."""
        self._images.check(images)
        clf = self.classifier
        stored = self._mixing(share=0).get(_TEACHERS)
        logits = clf.logits(clf.encode(images, self._teacher, statistics=stored))
        usable = usable & self._images.storable(images) & logits.isfinite().all(1)
        probabilities = logits.softmax(1)
        entropies = -(probabilities * torch.log(probabilities + 1e-6)).sum(1)

        labels = torch.where(usable, logits.argmax(1), -1)
        # one transfer to the host
        offered = torch.stack([labels.double(), entropies.double()], 1).tolist()
        placed: dict[int, int] = {}
        for index, (label, entropy) in enumerate(offered):
            if label < 0:
                continue
            slot = self._memory.insert(int(label), entropy)
            if slot is not None:
                placed[slot] = index
            self._arrived += 1
            if self._arrived % self.interval == 0:
                self._images.put(images, placed)
                placed = {}
                self._update()
        self._images.put(images, placed)
        return Answer(logits, lambda: clf.logits(clf.encode(images)), usable)

    def _update(self) -> None:
        """One step of the student on the whole memory; the teacher follows."""
        images = self._images.images
        every = torch.ones(len(images), dtype=torch.bool, device=images.device)
        gradient, statistics = self._lesson(images, every)
        if not _finite(statistics):  # spoiled by an image that overflows by now
            gradient, statistics = self._lesson(*refuse_overflowing(self.classifier, images, every))
            if not _finite(statistics):
                return
        self._statistics = statistics
        self._student = sign_step(self._student, gradient, self.lr)
        self._teacher = (1 - self.nu) * self._teacher + self.nu * self._student

    def _lesson(self, images: Tensor, counted: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The student's gradient on the images that count, and the statistics of both passes."""
        clf, seen = self.classifier, self._mixing(self.alpha, counted)
        target = clf.logits(clf.encode(images, self._teacher, statistics=seen.get(_TEACHERS))).softmax(1)
        # an image that overflows by now teaches nothing
        target = torch.where(target.isfinite() & counted[:, None], target, 0)
        ages = torch.tensor(self._memory.ages, dtype=target.dtype, device=target.device) / self.memory
        weights = torch.sigmoid(-ages)  # exp(-age) / (1 + exp(-age))
        with torch.enable_grad():
            student = self._student.detach().requires_grad_()
            embeddings = clf.encode(self._augmented(images), student, statistics=seen.get(_STUDENTS))
            log_p = clf.logits(embeddings).log_softmax(1)
            loss = (weights * -(target * log_p).sum(1)).mean()
            gradient = clf.gradient(loss, student)
        return gradient, {name: statistics.mixed for name, statistics in seen.items()}

    def _mixing(self, share: float, counted: Tensor | None = None) -> dict[str, Statistics]:
        """The stored statistics, if any, to be mixed with this share of a pass's own."""
        return {
            name: Statistics(counted, share=share, stored=stored) for name, stored in self._statistics.items()
        }

    def _pretrained_statistics(self) -> dict[str, Tensor]:
        names = (_STUDENTS, _TEACHERS) if self.statistics == "robust" else ()
        return dict.fromkeys(names, self.classifier.encoder.base_statistics)

    def _augmented(self, images: Tensor) -> Tensor:
        wide = images.to(torch.promote_types(images.dtype, torch.float32))
        mean, std = (wide.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        drawn = draw((images.shape[2], images.shape[3]), self.generator(place=self._arrived))
        return (augment(wide * std + mean, drawn) - mean) / std

    def clear(self) -> None:
        """Student and teacher back to the pretrained weights and statistics, an empty memory."""
        self._student = self._teacher = self.classifier.encoder.base
        self._statistics = self._pretrained_statistics()
        self._memory = Cstu(self.memory, self.classifier.num_classes, self.timeliness, self.uncertainty)
        self._images.clear()
        self._arrived = 0

    def content(self) -> dict[str, Tensor]:
        """Both weights, stored statistics if any, the memory, and how many images have been offered to it."""
        return {
            **{name: stored.clone() for name, stored in self._statistics.items()},
            "student": self._student.clone(),
            "teacher": self._teacher.clone(),
            "images": self._images.images.clone(),
            "arrived": torch.tensor(self._arrived, device="cpu"),
            **self._memory.state(),
        }

    def restore(self, content: dict[str, Tensor]) -> None:
        """Take over what ``content`` gave."""
        names = {"student", "teacher", "images", "arrived", "labels", "entropies", "ages"}
        expect_names("rotta", content, names | self._statistics.keys())
        base = self.classifier.encoder.base
        student, teacher = (saved_affine(name, content, base) for name in ("student", "teacher"))
        expect("arrived", content["arrived"], torch.int64, ())
        images = self._images.restored(content["images"])
        if content["arrived"] < len(images):
            raise ValueError("arrived in the state must be at least the number of images held")
        stored = self.classifier.encoder.base_statistics
        statistics = {name: saved_statistics(name, content, stored) for name in self._statistics}
        self._memory = self._memory.restored(content, len(images))
        self._statistics = statistics
        self._student, self._teacher, self._images = student, teacher, images
        self._arrived = int(content["arrived"])

    def memory_bytes(self) -> int:
        """Both weights, what statistics are stored, and a full memory.

        See ``ImageStore.max_bytes`` for encoders that state no size.
        """
        numbers = 2 * self._student.numel() + sum(stored.numel() for stored in self._statistics.values())
        weights = numbers * self._student.element_size()
        return weights + self._images.max_bytes() + 24 * self.memory + 8


def _finite(tensors: dict[str, Tensor]) -> bool:
    return all(tensor.isfinite().all() for tensor in tensors.values())


def _pixel_statistics(
    classifier: ZeroShotClassifier, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if (mean is None) != (std is None):
        raise ValueError(f"mean and std must be given together, got mean={mean!r} and std={std!r}")
    if mean is not None and std is not None:
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError(f"mean and std must be three numbers, std above 0, got {mean!r}, {std!r}")
        return tuple(map(float, mean)), tuple(map(float, std))
    if classifier.pixel_statistics is None:
        raise MissingPartError(
            "method 'rotta' augments images in [0, 1] and must know how they were normalised: give the "
            "ZeroShotClassifier its preprocess=ramen.Preprocess(...), or give mean=... and std=... here"
        )
    return classifier.pixel_statistics
