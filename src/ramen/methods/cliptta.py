"""CLIPTTA: contrastive entropy within the batch and within a memory of confident images, ten steps a batch.

Lafon et al., "CLIPTTA: Robust Contrastive Vision-Language Test-Time Adaptation", NeurIPS 2025.
"""

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ramen.memory.images import ImageMemory
from ramen.memory.policies import MostConfident
from ramen.methods._method import Method
from ramen.methods._optim import OnlineWeights
from ramen.methods._passes import Answer, Pass, Seen, Steps
from ramen.methods._registry import (
    AUTO,
    MOMENTUM,
    OPTIMIZER_OR_DECAY,
    OPTIMIZERS,
    STATISTICS,
    WEIGHT_DECAY,
    MethodInfo,
    field,
    register,
)
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.distributed import Peers
from ramen.utils.numerics import pair_scores

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
            "as in CLIPTTA's code, a step sees at least one image of each class that the memory knows: with "
            "1,000 classes up to 1,000 images, whatever sample is. images_at_once bounds what the encoder "
            "holds of them; CLIPTTA's code encodes all together",
            "the entropy of the mean prediction presumes balanced batches",
            "BatchNorm keeps its running statistics; statistics='batch' uses those of the images that are "
            "encoded together, images_at_once of the memory at most",
        ),
    )
)
class Cliptta(Method):
    """Take ten steps per batch on its contrastive entropy and that of confident images of the stream."""

    lr: float = field(1e-4, ge=0, doc="Step size.")
    iterations: int = field(10, ge=1, doc="Steps per batch.")
    beta: float = field(1.0, ge=0, doc="Weight of the entropy of the mean prediction, which is raised.")
    shots: int = field(
        AUTO,
        ge=1,
        published=_SHOTS,
        saved=True,
        doc='How many images of each predicted class the memory holds. "auto": chosen by the number of '
        "classes.",
    )
    sample: int = field(
        AUTO,
        ge=1,
        published=_SAMPLE,
        doc="How many images of the memory a step sees, in equal parts of each class, of which there is "
        'at least one. "auto": likewise.',
    )
    learn_from: str = field(
        "both",
        choices=SOURCES,
        doc='Where gradients come from: "both" batch and memory, or the "memory" alone.',
    )
    images_at_once: int = field(
        128,
        ge=1,
        doc="How many images of the memory go through the encoder together, which decides the memory needed. "
        "If a step sees more, each goes through it once more for the gradients, with the same result.",
    )
    statistics: str = STATISTICS
    optimizer: str = field("adam", choices=OPTIMIZERS, saved=True, doc=OPTIMIZER_OR_DECAY)
    momentum: float = MOMENTUM
    weight_decay: float = WEIGHT_DECAY
    seed: int = field(0, ge=0, doc="Decides which images of the memory a step sees.")

    joins_groups = True

    affine: Tensor
    steps_taken: Tensor

    def setup(self) -> None:
        classifier = self.classifier
        classes = classifier.num_classes
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
        self._per_class = max(1, self.sample // classes)
        self.add_state("steps_taken", torch.zeros((), dtype=torch.int64, device="cpu"), minimum=0)
        self._loss = partial(loss, classifier, self.beta)
        self._batch_loss = partial(loss, classifier, self.beta, peers=self.peers)
        self._block_loss = partial(block_loss, classifier)
        self._options: dict[str, Any] = {"of": "embeddings", "statistics": self.statistics}

    def passes(self) -> tuple[int, int]:
        """One of each per step for the memory, and for the batch if it teaches; one forward to predict.

        Images of a full memory pass forward twice if they do not go through the encoder together.
        """
        most = self.classifier.num_classes * self._per_class
        memory = 2 * self.iterations if most > self.images_at_once else self.iterations
        if self.learn_from == "both":
            return memory + self.iterations + 1, 2 * self.iterations
        return memory + 2, self.iterations  # the first pass of the batch decides what is remembered

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Take the steps, of which the first renews the memory, then predict."""
        usable = usable & self._remembered.storable(images)
        for step in range(self.iterations):
            gradient, logits = torch.zeros_like(self.affine), None
            if self.learn_from == "both":
                seen = yield Pass(images, self.affine, self._batch_loss, usable, **self._options)
                usable, gradient = seen.usable, seen.gradient
                logits = self.classifier.logits(seen.embeddings)
            elif step == 0:
                seen = yield Pass(images, self.affine, None, usable, statistics=self.statistics)
                usable, logits = seen.usable, seen.logits
            if step == 0 and logits is not None and not self._remember(images, logits, usable):
                break  # nothing to learn from
            gradient = gradient + (yield from self._memory_gradient())
            self._weights.step(gradient)
            self.steps_taken = self.steps_taken + 1
        return Answer(Pass(images, self.affine, None, usable, statistics=self.statistics), None, usable)

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

    def _memory_gradient(self) -> Generator[Pass, Seen, Tensor]:
        """That of a sample of the memory, with as many images of each class."""
        policy = self._remembered.policy
        slots = torch.arange(len(policy.labels), device="cpu")
        draws = pair_scores(self.seed, self.steps_taken, slots).tolist()
        chosen = torch.tensor(policy.sample(self._per_class, draws), device=self.classifier.device)
        if len(chosen) > self.images_at_once:
            return (yield from self._gradient_in_blocks(chosen.split(self.images_at_once)))
        images = self._remembered.images[chosen]
        seen = yield Pass(images, self.affine, self._loss, _all(images), common=True, **self._options)
        return seen.gradient

    def _gradient_in_blocks(self, blocks: Sequence[Tensor]) -> Generator[Pass, Seen, Tensor]:
        """That of all these images of the memory, of which one block at a time is in the encoder.

        The first time they pass, the loss says how it depends on each logit; the second time, so does each
        block's share of the gradient.
        """
        stored, options, found = self._remembered.images, self._options, []
        for block in blocks:
            images = stored[block]
            found.append((yield Pass(images, self.affine, None, _all(images), statistics=self.statistics)))
        logits, usable = torch.cat([one.logits for one in found]), torch.cat([one.usable for one in found])
        with torch.enable_grad():
            logits.requires_grad_()
            (slopes,) = torch.autograd.grad(loss_of_logits(logits, usable, self.beta), logits)
        gradient = torch.zeros_like(self.affine)
        for block, one, own in zip(blocks, found, slopes.split(len(blocks[0])), strict=True):
            wanted = Pass(
                stored[block], self.affine, self._block_loss, one.usable, own, common=True, **options
            )
            gradient = gradient + (yield wanted).gradient
        return gradient


def _all(images: Tensor) -> Tensor:
    return torch.ones(len(images), dtype=torch.bool, device=images.device)


def block_loss(classifier: ZeroShotClassifier, embeddings: Tensor, usable: Tensor, slopes: Tensor) -> Tensor:
    """That of a part of the images, given the slopes ``(B, C)`` of the whole one along their logits."""
    return (classifier.logits(torch.where(usable[:, None], embeddings, 0)) * slopes).sum()


def loss(
    classifier: ZeroShotClassifier,
    beta: float,
    embeddings: Tensor,
    usable: Tensor,
    *,
    peers: Peers | None = None,
) -> Tensor:
    """``loss_of_logits`` of a batch's embeddings."""
    return loss_of_logits(classifier.logits(embeddings), usable, beta, peers)


def loss_of_logits(logits: Tensor, usable: Tensor, beta: float, peers: Peers | None = None) -> Tensor:
    """The contrastive entropy, less ``beta`` times the entropy of the mean prediction."""
    usable = usable & logits.detach().isfinite().all(1)
    return contrastive_entropy(logits, usable, peers) - beta * entropy_of_mean(logits, usable, peers)


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
