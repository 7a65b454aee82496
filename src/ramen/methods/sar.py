"""SAR: sharpness-aware entropy minimisation of confident images, with recovery from collapse.

Niu et al., "Towards Stable Test-Time Adaptation in Dynamic Wild World", ICLR 2023.
"""

import math

import torch
from torch import Tensor

from ramen.methods._losses import LOSSES, OPINION_ENTROPY, mean_entropy
from ramen.methods._method import Method
from ramen.methods._optim import FROZEN, OnlineWeights, trained_part
from ramen.methods._passes import Answer, Pass, Steps
from ramen.methods._registry import (
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


@register(
    MethodInfo(
        name="sar",
        title="SAR: sharpness-aware and reliable entropy minimisation",
        venue="ICLR 2023",
        paper="https://arxiv.org/abs/2302.12400",
        updates="weight and bias of all norm layers, online: reset only if the loss indicates collapse",
        predicts_with="the forward pass before the update",
        batch_dependent=False,
        forwards=2,
        backwards=2,
        notes=(
            "from the Ramen paper: SignSGD and its learning rates; SAR's own code uses SGD with a momentum "
            "of 0.9 (optimizer='sgd', lr=2.5e-4 for a ResNet, 1e-3 for a ViT) and a reset restarts it",
            "from SAR's paper and code: both entropy filters, the step up the gradient before the step "
            "down, the moving average and the reset; margin, rho, momentum and reset_below are theirs",
            "open in the Ramen paper: whether the top layers are frozen. SAR's code freezes the last three "
            "blocks of a ViT-B and the last norm, or layer4 of a ResNet (frozen='top'); frozen='none' fits "
            "Ramen's code, whose methods share one model that trains all norm layers",
            "also open: the moving average after a reset. SAR's code keeps it, so several resets may follow "
            "one another; others clear it (clear_average=True)",
            "if no image is confident, nothing changes, as in SAR's code, whose loss is then NaN",
            "BatchNorm keeps its running statistics, as in Ramen's code; SAR's own code uses the batch's "
            "(statistics='batch'), which makes an image's prediction depend on the rest of its batch",
            OPINION_ENTROPY,
        ),
    )
)
class Sar(Method):
    """Take one step per batch, along the entropy gradient at the worst nearby weights."""

    lr: float = field(
        2e-5,
        ge=0,
        doc="Step size. The paper's: mixed streams 2e-5 (CIFAR-C), 1e-4 (ImageNet-C), 2e-5 (DomainNet); "
        "single domains 1e-4 (CIFAR-10-C), 2e-4 (CIFAR-100-C), 2e-3 (ImageNet-C), 1e-4 (DomainNet).",
    )
    margin: float = field(0.4, ge=0, doc=MARGIN)
    rho: float = field(
        0.05, ge=0, doc="How far up the gradient the step down is evaluated, in Euclidean length."
    )
    reset_below: float = field(
        0.2, ge=0, doc="Reset to the pretrained weights if the moving average of the loss falls below this."
    )
    momentum: float = field(0.9, ge=0, le=1, doc="The momentum of that moving average.")
    frozen: str = field(
        "none",
        choices=FROZEN,
        doc='"none", or "top" to freeze the last three blocks and the norm after them, or the last stage '
        "of a ResNet.",
    )
    clear_average: bool = field(False, doc="Also clear the moving average at a reset.")
    statistics: str = STATISTICS
    optimizer: str = field("sign", choices=WITHOUT_DECAY, saved=True, before="sign", doc=OPTIMIZER)
    sgd_momentum: float = MOMENTUM
    loss: str = LOSS

    recordable = True
    joins_groups = True

    affine: Tensor
    average: Tensor  # of the loss; means nothing until it has started
    started: Tensor
    resets: Tensor  # how often the weights went back to the pretrained ones within the stream

    def setup(self) -> None:
        classifier = self.classifier
        self._bound = self.margin * math.log(classifier.num_classes)
        self._trained = trained_part(classifier.encoder, self.frozen)
        self._measure = LOSSES[self.loss]
        self._weights = OnlineWeights(
            self, self.optimizer, self.lr, momentum=self.sgd_momentum, trained=self._trained
        )
        base = classifier.encoder.base
        self.add_state("average", base.new_zeros(()), minimum=0)
        self.add_state("started", torch.zeros((), dtype=torch.bool, device=base.device))
        self.add_state("resets", torch.zeros((), dtype=torch.int64, device=base.device), minimum=0)

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Predict with the weights so far; one step up, one step down; reset if the loss has collapsed."""
        statistics = self.statistics
        # 1. The entropy of confident images, at the weights so far.
        first = yield Pass(images, self.affine, self._confident, usable, statistics=statistics)

        # 2. Up, to where the loss is worst nearby.
        gradient = first.gradient * self._trained
        worst = self.affine + self.rho * gradient / (gradient.norm() + 1e-12)

        # 3. The entropy of those still confident there decides the step down, which starts where 2. did.
        given = first.usable, first.counted
        second = yield Pass(first.images, worst, self._confident, *given, statistics=statistics)
        logits, still = self.whole(second.logits), self.whole(second.counted)
        self._weights.step(second.gradient, taken=still.any())

        # 4. A moving average of the loss that is too small tells of collapse.
        self._recover(mean_entropy(logits, still, self._measure), still.any())
        return Answer(first.logits, None, first.usable)

    def _confident(self, logits: Tensor, among: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The entropy of each image, and which ones are confident, of those ``among`` which to look."""
        entropies = self._measure(logits)
        confident = entropies.detach() < self._bound
        return entropies, confident if among is None else confident & among

    def _recover(self, loss: Tensor, any_loss: Tensor) -> None:
        """Enter a batch's loss, if there is one; back to the pretrained weights if the average is too small.

        Nothing here asks the device for a value.
        """
        mixed = torch.where(self.started, torch.lerp(loss, self.average, self.momentum), loss)
        self.average = torch.where(any_loss, mixed, self.average)
        self.started = self.started | any_loss
        collapsed = self.started & (self.average < self.reset_below)
        self.resets = self.resets + collapsed
        if self.clear_average:
            self.average = torch.where(collapsed, 0, self.average)
            self.started = self.started & ~collapsed
        self._weights.restart(collapsed)
