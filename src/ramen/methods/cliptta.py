"""CLIPTTA: contrastive entropy within the batch and within a memory of confident images, ten steps a batch.

Lafon et al., "CLIPTTA: Robust Contrastive Vision-Language Test-Time Adaptation", NeurIPS 2025.
"""

from functools import partial

import torch
from torch import Tensor

from ramen.encoder.batchnorm_statistics import choose
from ramen.memory.image_memory import ImageMemory
from ramen.memory.most_confident import MostConfident
from ramen.methods._answers import Answer
from ramen.methods._base import Method
from ramen.methods._info import MethodInfo
from ramen.methods._online_weights import OPTIMIZERS, OnlineWeights
from ramen.methods._parameters import AUTO, published
from ramen.methods._registry import register
from ramen.methods._steps import loss_gradient, shared_logits
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.pair_scores import pair_scores
from ramen.utils.peers import Group, Peers

SOURCES = ("both", "memory")
_SHOTS = {10: 4, 100: 16, 1000: 16}  # published, by the number of classes
_SAMPLE = {10: 40, 100: 128, 1000: 64}
_EPS = 1e-6  # of Adam


@register(
    MethodInfo(
        name="cliptta",
        title="CLIPTTA: contrastive test-time adaptation with a memory of confident images",
        venue="NeurIPS 2025",
        paper="https://arxiv.org/abs/2507.14312",
        updates="weight and bias of all norm layers, online: never reset",
        predicts_with="a last forward pass after ten steps",
        batch_dependent=True,
        forwards=21,
        backwards=20,
        batch_sized=("sample",),
        random=True,
        notes=(
            "from CLIPTTA's code: both losses on the batch and on a sample of the memory, Adam with eps "
            "1e-6, the memory's rule, ten steps, prediction after them. Its scripts have lr 1e-4 and beta 1; "
            "its configuration has 1e-3 and 0.1",
            "learn_from='memory' takes gradients from the memory alone, as the scripts for ImageNet do",
            "the loss for open sets, which tells unknown classes from known ones, is left out",
            "as in CLIPTTA's code, confidences that decide what the memory keeps are of cosines without "
            "logit scale, and the losses are of scaled ones",
            "the entropy over the texts of a batch is computed by class: images of a class have the same "
            "text, so that its number of images is its weight, with the same result",
            "decided here: images of the memory are predicted anew in every step, as those of the batch are; "
            "random draws depend on the seed and the number of steps",
            "shots and sample are the published ones for the nearest number of classes. A full memory is "
            "large: 16 images of 224 x 224 pixels for each of 1,000 classes take 9.6 GB in fp32",
            "the entropy of the mean prediction presumes balanced batches",
            "BatchNorm keeps its running statistics; statistics='batch' uses those of the images that are "
            "encoded together",
        ),
    )
)
class Cliptta(Method):
    """Take ten steps per batch on its contrastive entropy and that of confident images of the stream.

    Args:
        classifier: What it adapts.
        lr: Step size.
        iterations: Steps per batch.
        beta: Weight of the entropy of the mean prediction, which is raised.
        shots: How many images of each predicted class the memory holds. "auto": chosen by the number of
            classes.
        sample: How many images of the memory a step sees, in equal parts of each class, of which there is at
            least one. "auto": likewise.
        learn_from: Where gradients come from: "both" batch and memory, or the "memory" alone.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images that are encoded together.
        optimizer: "sign" moves every parameter by ``lr`` against the sign of its gradient, "sgd" along the
            gradient, "adam" and "adamw" as ``torch.optim`` does.
        momentum: Of "sgd"; the others do not use it.
        weight_decay: Of the optimizer.
        seed: Decides which images of the memory a step sees.
        group: As for every method.
    """

    state_parameters = ("shots", "statistics", "optimizer")
    joins_groups = True

    affine: Tensor
    steps_taken: Tensor

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 1e-4,
        iterations: int = 10,
        beta: float = 1.0,
        shots: int | str = AUTO,
        sample: int | str = AUTO,
        *,
        learn_from: str = "both",
        statistics: str = "source",
        optimizer: str = "adam",
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.lr = checks.number("lr", lr, 0)
        self.iterations = checks.integer("iterations", iterations, 1)
        self.beta = checks.number("beta", beta, 0)
        classes = classifier.num_classes
        if shots == AUTO:
            shots, self.chosen["shots"] = published(_SHOTS, classes)
        if sample == AUTO:
            sample, self.chosen["sample"] = published(_SAMPLE, classes)
        self.shots, self.sample = checks.integer("shots", shots, 1), checks.integer("sample", sample, 1)
        self.learn_from = checks.choice("learn_from", learn_from, SOURCES)
        self.statistics = choose(statistics, classifier.encoder.base_statistics, alone=group is None)
        self.optimizer = checks.choice("optimizer", optimizer, OPTIMIZERS)
        self.momentum = checks.number("momentum", momentum, 0)
        self.weight_decay = checks.number("weight_decay", weight_decay, 0)
        self._weights = OnlineWeights(
            self,
            self.optimizer,
            self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            eps=_EPS,
        )
        self._remembered = self.add_memory(
            ImageMemory(
                MostConfident(self.shots, classes),
                self.shots * classes,
                classifier.dtype,
                classifier.device,
                classifier.image_size,
                self.peers,
            )
        )
        self.add_state("steps_taken", torch.zeros((), dtype=torch.int64, device="cpu"), minimum=0)
        # What the memory keeps is decided on the host: on a GPU the passes are recorded, not the step.
        self._logits = self.record(partial(shared_logits, classifier, statistics=self.statistics))
        lesson = partial(_lesson, classifier, self.beta, self.statistics)
        self._lesson = self.record(lesson)
        self._batch_lesson = self._lesson if group is None else partial(lesson, peers=self.peers)

    def passes(self) -> tuple[int, int]:
        """One of each per step for the memory, and for the batch if it teaches; one forward to predict."""
        if self.learn_from == "both":
            return 2 * self.iterations + 1, 2 * self.iterations
        return self.iterations + 2, self.iterations  # the first pass of the batch decides what is remembered

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Take the steps, of which the first renews the memory, then predict."""
        usable = usable & self._remembered.storable(images)
        for step in range(self.iterations):
            gradient = torch.zeros_like(self.affine)
            if self.learn_from == "both":
                logits, gradient, usable = self._batch_lesson(images, self.affine, usable)
            elif step == 0:
                logits, usable = self._logits(images, self.affine, usable)
            if step == 0 and not self._remember(images, logits, usable):
                break  # nothing to learn from
            gradient = gradient + self._memory_gradient()
            self._weights.step(gradient)
            self.steps_taken = self.steps_taken + 1
        logits, usable = self._logits(images, self.affine, usable)
        return Answer(logits, None, usable)

    def _remember(self, images: Tensor, logits: Tensor, usable: Tensor) -> bool:
        """Offer a batch to the memory, one image after the other; False if there was none to offer."""
        cosines = logits / self.classifier.logit_scale
        confidences, labels = cosines.softmax(1).max(1)
        labels = torch.where(usable, labels, -1)
        # one transfer to the host
        offered = self.whole(torch.stack([labels.double(), confidences.double()], 1)).tolist()
        for index, (label, confidence) in enumerate(offered):
            if label >= 0:
                self._remembered.offer(images, index, int(label), confidence)
        self._remembered.settle()
        return any(label >= 0 for label, _ in offered)

    def _memory_gradient(self) -> Tensor:
        """That of a sample of the memory, with as many images of each class."""
        policy = self._remembered.policy
        slots = torch.arange(len(policy.labels), device="cpu")
        draws = pair_scores(self.seed, self.steps_taken, slots).tolist()
        per_class = max(1, self.sample // self.classifier.num_classes)
        chosen = torch.tensor(policy.sample(per_class, draws), device=self.classifier.device)
        images = self._remembered.images[chosen]
        every = torch.ones(len(images), dtype=torch.bool, device=images.device)
        _, gradient, _ = self._lesson(images, self.affine, every)
        return self.averaged(gradient)


def _lesson(
    classifier: ZeroShotClassifier,
    beta: float,
    statistics: str,
    images: Tensor,
    affine: Tensor,
    usable: Tensor,
    *,
    peers: Peers | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The logits of a batch, the gradient of both losses, and which images were usable."""

    def loss(embeddings: Tensor, usable: Tensor) -> Tensor:
        logits = classifier.logits(embeddings)
        usable = usable & logits.detach().isfinite().all(1)
        return contrastive_entropy(logits, usable, peers) - beta * entropy_of_mean(logits, usable, peers)

    embeddings, gradient, usable = loss_gradient(
        classifier, images, affine, usable, loss, statistics=statistics, peers=peers
    )
    return classifier.logits(embeddings), gradient, usable


def contrastive_entropy(logits: Tensor, usable: Tensor, peers: Peers | None = None) -> Tensor:
    """The mean entropy, per usable image, of a softmax over the texts of all usable images of the batch.

    The text of an image is that of its predicted class. ``n`` images of a class share theirs, each with the
    probability ``Q / n`` if the class has ``Q``.
    """
    logits = torch.where(usable[:, None], logits, 0)
    labels = logits.detach().argmax(1)
    of_class = (labels[:, None] == torch.arange(logits.shape[1], device=labels.device)) & usable[:, None]
    images = _total(of_class.sum(0), peers)
    log_images = images.clamp_min(1).to(logits.dtype).log()
    lowest = torch.finfo(logits.dtype).min / 2  # not -inf, of which gradients are not finite
    log_q = torch.log_softmax(torch.where(images > 0, logits + log_images, lowest), dim=1)
    entropies = -torch.where(images > 0, log_q.exp() * (log_q - log_images), 0).sum(1)
    return torch.where(usable, entropies, 0).sum() / images.sum().clamp_min(1)


def entropy_of_mean(logits: Tensor, usable: Tensor, peers: Peers | None = None) -> Tensor:
    """The entropy of the mean prediction of the usable images.

    In a group, that of the images of all processes, with gradients to those of this process.
    """
    own = torch.where(usable[:, None], torch.where(usable[:, None], logits, 0).softmax(1), 0).sum(0)
    others = _total(own.detach(), peers) - own.detach()
    mean = (own + others) / _total(usable.sum(), peers).clamp_min(1)
    return -(mean * mean.clamp_min(torch.finfo(mean.dtype).tiny).log()).sum()


def _total(tensor: Tensor, peers: Peers | None) -> Tensor:
    return tensor if peers is None else peers.total(tensor, "adding up")
