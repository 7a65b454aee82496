"""EATA: entropy minimisation of images that are confident and not redundant; ETA without its Fisher term.

Niu et al., "Efficient Test-Time Model Adaptation without Forgetting", ICML 2022.
Options come from Press et al., "RDumb: A simple approach that questions our progress in continual test-time
adaptation", NeurIPS 2023, and from Zhao et al., "DELTA: Degradation-Free Fully Test-Time Adaptation", ICLR
2023.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.methods._losses import LOSSES, OPINION_ENTROPY
from ramen.methods._method import Method
from ramen.methods._optim import OnlineWeights
from ramen.methods._passes import Answer, Pass, Steps, give
from ramen.methods._registry import (
    AUTO,
    LOSS,
    MARGIN,
    MOMENTUM,
    OPTIMIZER,
    STATISTICS,
    WITHOUT_DECAY,
    MethodInfo,
    field,
    register,
)
from ramen.methods._runner import receive
from ramen.utils import checks
from ramen.utils.numerics import finite_or_zero, plain_numerics

_MEMORY = 0.9  # of the moving average of probabilities
_REDUNDANCY = {10: 0.4, 100: 0.1, 1000: 0.05}  # published, by the number of classes


@register(
    MethodInfo(
        name="eata",
        title="EATA: efficient test-time adaptation without forgetting (also ETA, RDumb, DELTA's DOT)",
        venue="ICML 2022",
        paper="https://arxiv.org/abs/2204.02610",
        updates="weight and bias of all norm layers, online: reset within a stream only if asked for",
        predicts_with="the forward pass before the update",
        batch_dependent=False,
        forwards=1,
        backwards=1,
        notes=(
            "ETA by default, as CLIP has no source images. Give some to remember_source(images) before the "
            "stream, and it is EATA: parameters that matter to them are held back with the weight fisher",
            "reset_every=1000 is RDumb (NeurIPS 2023, arXiv 2306.05401), on ETA as in its code",
            "class_balance=0.95 weights images as DOT of DELTA does (ICLR 2023), before the filters, as in "
            "its code; margin=0.5 and redundancy=2 are DELTA's filters. Its batch renormalisation is left "
            "out",
            "redundancy is the published one for the nearest number of classes: 0.05 for 1,000 (EATA), 0.1 "
            "for 100 and 0.4 for 10 (as others run it)",
            "the mean is over the kept images alone, as in EATA's code: a single one makes a full step",
            "a full reset also clears the mean of probabilities, which EATA's code keeps; the Fisher "
            "information stays",
            "the Fisher information is of squared gradients of batches, not of images, as in EATA's code. "
            "With optimizer='sign' its term only acts on a parameter if it overturns the sign",
            "how many images are confident depends on the logit scale: at 100 far more of them than at 20",
            "BatchNorm keeps its running statistics; EATA's own code uses the batch's (statistics='batch')",
            OPINION_ENTROPY,
        ),
    )
)
class Eata(Method):
    """Take one step per batch on the entropy of the images that are confident and tell something new."""

    lr: float = field(
        2.5e-4,
        ge=0,
        doc="Step size. EATA's own: 2.5e-4 (ResNet-50, ImageNet-C); others use 1e-3 for a ViT with "
        "batches of 64.",
    )
    margin: float = field(0.4, ge=0, doc=MARGIN)
    redundancy: float = field(
        AUTO,
        ge=0,
        published=_REDUNDANCY,
        doc="An image tells something new if the cosine between its probabilities and the moving average "
        'of those kept is below this; from 2 on, all do. "auto": chosen by the number of classes.',
    )
    fisher: float = field(
        2000.0,
        ge=0,
        doc="Weight of the term that holds back parameters that matter to the source images; without such "
        "images it has no effect. EATA's own: 2000 for ImageNet-C; others use 1 for CIFAR-C.",
    )
    reset_every: int = field(0, ge=0, doc="Batches between full resets; 0 for none. RDumb's: 1000.")
    class_balance: float = field(
        0.0,
        ge=0,
        lt=1,
        doc="Momentum of the class frequencies that images are weighted by, so that rare classes count as "
        "much as frequent ones; 0 for no such weights. DELTA's: 0.95.",
    )
    statistics: str = STATISTICS
    optimizer: str = field("sgd", choices=WITHOUT_DECAY, saved=True, doc=OPTIMIZER)
    momentum: float = MOMENTUM
    loss: str = LOSS

    recordable = True
    joins_groups = True

    affine: Tensor
    importance: Tensor  # the Fisher information of the parameters; zero without source images
    probabilities: Tensor  # moving average over the kept images; means nothing until it has started
    started: Tensor
    frequencies: Tensor  # of the classes, a moving average over all images
    batches: Tensor  # since the last full reset

    def setup(self) -> None:
        classifier = self.classifier
        classes = classifier.num_classes
        self._measure, self._bound = LOSSES[self.loss], self.margin * math.log(classes)
        self._weights = OnlineWeights(self, self.optimizer, self.lr, momentum=self.momentum)
        base, per_class = classifier.encoder.base, classifier.class_embeddings.new_zeros(classes)
        self.add_state("importance", torch.zeros_like(base), minimum=0, kept=True)
        self.add_state("probabilities", per_class, minimum=0)
        self.add_state("started", torch.zeros((), dtype=torch.bool, device=base.device))
        self.add_state("frequencies", torch.full_like(per_class, 1 / classes), minimum=0)
        self.add_state("batches", torch.zeros((), dtype=torch.int64, device=base.device), minimum=0)

    # -- before the stream --------------------------------------------------------------------------

    @plain_numerics()
    @torch.no_grad()
    def remember_source(self, images: Tensor, batch_size: int = 64) -> None:
        """Hold back, from now on, the parameters that matter to these images: EATA's Fisher term.

        What is remembered is one number per parameter, not the images. It is saved with the state, and a
        reset keeps it.

        Args:
            images: Preprocessed images ``(N, 3, H, W)`` like those that the model was trained on; EATA uses
                2,000. In a group, the same ones in every process.
            batch_size: Gradients are squared per batch of this many images.
        """
        images = self.classifier.check_images(images)
        batches = images.split(checks.integer("batch_size", batch_size, 1))
        with self.one_caller:
            total = torch.zeros_like(self.importance)
            for batch in batches:
                finite, usable, _ = receive(self, batch)
                base = self.classifier.encoder.base
                wanted = Pass(
                    finite, base, self._own_label_loss, usable, of="embeddings", statistics=self.statistics
                )
                gradient = give(self.classifier, wanted).gradient
                total += finite_or_zero(gradient).to(total.dtype).square()
            self.importance = self.averaged(total / len(batches))
            self.state.commit(vars(self))

    def _own_label_loss(self, embeddings: Tensor, usable: Tensor) -> Tensor:
        """The mean cross-entropy with the predicted classes as labels."""
        logits = self.classifier.logits(torch.where(usable[:, None], embeddings, 0))
        losses = F.cross_entropy(logits, logits.argmax(1), reduction="none")
        return torch.where(usable, losses, 0).sum() / usable.sum().clamp_min(1)

    # -- the stream ---------------------------------------------------------------------------------

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Predict with the weights so far, then take one step on the images that are kept."""
        clf = self.classifier
        wanted = Pass(images, self.affine, self._loss, usable, of="embeddings", statistics=self.statistics)
        seen = yield wanted
        gradient, usable, logits = seen.gradient, seen.usable, clf.logits(seen.embeddings)
        kept = self._kept(logits, usable)
        forgetting = 2 * self.fisher * self.importance * (self.affine - clf.encoder.base)
        self._weights.step(gradient + forgetting, taken=self.whole(kept).any())
        self._enter(logits.softmax(1), kept, usable)
        if self.reset_every:
            self._restart_if_due(self.whole(usable).any())
        return Answer(logits, None, usable)

    def _kept(self, logits: Tensor, usable: Tensor) -> Tensor:
        """The images that are confident, and not redundant if there is something to compare them with."""
        alike = F.cosine_similarity(logits.softmax(1), self.probabilities[None]).abs()
        return usable & (self._measure(logits) < self._bound) & (~self.started | (alike < self.redundancy))

    def _loss(self, embeddings: Tensor, usable: Tensor) -> Tensor:
        """The weighted mean entropy of the kept images; the more confident, the more an image counts."""
        logits = self.classifier.logits(embeddings)
        usable = usable & logits.isfinite().all(1)
        kept = self._kept(logits.detach(), usable)
        entropies = self._measure(torch.where(kept[:, None], logits, 0))
        weights = torch.exp(self._bound - entropies.detach())
        if self.class_balance:
            weights = weights * self._class_weights(logits.detach(), usable)
        count = self.summed(kept.sum()).clamp_min(1)
        return torch.where(kept, weights * entropies, 0).sum() / count

    def _class_weights(self, logits: Tensor, usable: Tensor) -> Tensor:
        """The inverse frequencies of the predicted classes, whose mean over the batch is 1."""
        frequencies = self.frequencies.clamp_min(torch.finfo(logits.dtype).eps)
        inverse = torch.where(usable, 1 / frequencies[logits.argmax(1)], 0)
        return inverse * self.summed(usable.sum()) / self.summed(inverse.sum()).clamp_min(1)

    def _enter(self, probabilities: Tensor, kept: Tensor, usable: Tensor) -> None:
        """Enter a batch into the moving averages: that of the kept images, and that of all."""
        mean, any_kept = self._mean(probabilities, kept)
        mixed = torch.where(self.started, torch.lerp(mean, self.probabilities, _MEMORY), mean)
        self.probabilities = torch.where(any_kept, mixed, self.probabilities)
        self.started = self.started | any_kept
        if self.class_balance:
            mean, any_usable = self._mean(probabilities, usable)
            mixed = torch.lerp(mean, self.frequencies, self.class_balance)
            self.frequencies = torch.where(any_usable, mixed, self.frequencies)

    def _mean(self, rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of the chosen rows of all processes, and whether there are any."""
        count = self.summed(chosen.sum())
        return self.summed(torch.where(chosen[:, None], rows, 0).sum(0)) / count.clamp_min(1), count > 0

    def _restart_if_due(self, counted: Tensor) -> None:
        """After every ``reset_every`` batches, back to the start, but for the Fisher information."""
        batches = self.batches + counted
        due = batches >= self.reset_every
        self._weights.restart(due)
        self.batches = torch.where(due, 0, batches)
        self.started = self.started & ~due
        self.probabilities = torch.where(due, 0, self.probabilities)
        self.frequencies = torch.where(due, 1 / self.classifier.num_classes, self.frequencies)
