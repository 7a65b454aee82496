"""SAR: sharpness-aware entropy minimisation of confident images, with recovery from collapse.

Niu et al., "Towards Stable Test-Time Adaptation in Dynamic Wild World", ICLR 2023.
"""

import math
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ramen.encoder.batchnorm_statistics import choose
from ramen.methods._answers import Answer
from ramen.methods._base import Method
from ramen.methods._frozen_layers import FROZEN, trained_part
from ramen.methods._info import MethodInfo
from ramen.methods._notes import OPINION_ENTROPY
from ramen.methods._online_weights import WITHOUT_DECAY, OnlineWeights
from ramen.methods._opinion_entropy import LOSSES
from ramen.methods._registry import register
from ramen.methods._steps import entropy_gradient, mean_entropy
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.peers import Group


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
    """Take one step per batch, along the entropy gradient at the worst nearby weights.

    Args:
        classifier: What it adapts.
        lr: Step size. The paper's: mixed streams 2e-5 (CIFAR-C), 1e-4 (ImageNet-C), 2e-5 (DomainNet); single
            domains 1e-4 (CIFAR-10-C), 2e-4 (CIFAR-100-C), 2e-3 (ImageNet-C), 1e-4 (DomainNet).
        margin: An image is confident if its entropy is below this times ln C, the entropy of a uniform guess.
        rho: How far up the gradient the step down is evaluated, in Euclidean length.
        reset_below: Reset to the pretrained weights if the moving average of the loss falls below this.
        momentum: The momentum of that moving average.
        frozen: "none", or "top" to freeze the last three blocks and the norm after them, or the last stage
            of a ResNet.
        clear_average: Also clear the moving average at a reset.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images of the current batch.
        optimizer: "sign" moves every parameter by ``lr`` against the sign of its gradient, "sgd" along the
            gradient, "adam" as ``torch.optim.Adam`` does.
        sgd_momentum: Of "sgd"; the others do not use it.
        loss: What is minimised: "entropy", or "come" for COME's opinion entropy, which hardly moves uncertain
            images.
        seed: Has no effect.
        group: As for every method.
    """

    state_parameters = ("statistics", "optimizer")
    later_parameters: ClassVar = {"optimizer": "sign"}
    recordable = True
    joins_groups = True

    affine: Tensor
    average: Tensor  # of the loss; means nothing until it has started
    started: Tensor
    resets: Tensor  # how often the weights went back to the pretrained ones within the stream

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 2e-5,
        margin: float = 0.4,
        rho: float = 0.05,
        reset_below: float = 0.2,
        momentum: float = 0.9,
        *,
        frozen: str = "none",
        clear_average: bool = False,
        statistics: str = "source",
        optimizer: str = "sign",
        sgd_momentum: float = 0.9,
        loss: str = "entropy",
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.lr = checks.number("lr", lr, 0)
        self.margin = checks.number("margin", margin, 0)
        self.rho = checks.number("rho", rho, 0)
        self.reset_below = checks.number("reset_below", reset_below, 0)
        self.momentum = checks.number("momentum", momentum, 0)
        if self.momentum > 1:
            raise ValueError(f"momentum must be between 0 and 1, got {momentum}")
        self.frozen = checks.choice("frozen", frozen, FROZEN)
        self.clear_average = checks.flag("clear_average", clear_average)
        self.statistics = choose(statistics, classifier.encoder.base_statistics, alone=group is None)
        self._bound = self.margin * math.log(classifier.num_classes)
        self._trained = trained_part(classifier.encoder, self.frozen)
        self.optimizer = checks.choice("optimizer", optimizer, WITHOUT_DECAY)
        self.sgd_momentum = checks.number("sgd_momentum", sgd_momentum, 0)
        if self.sgd_momentum >= 1:
            raise ValueError(f"sgd_momentum must be at least 0 and below 1, got {sgd_momentum}")
        self.loss = checks.choice("loss", loss, LOSSES)
        self._measure = LOSSES[self.loss]
        self._weights = OnlineWeights(
            self, self.optimizer, self.lr, momentum=self.sgd_momentum, trained=self._trained
        )
        base = classifier.encoder.base
        self.add_state("average", base.new_zeros(()), minimum=0)
        self.add_state("started", torch.zeros((), dtype=torch.bool, device=base.device))
        self.add_state("resets", torch.zeros((), dtype=torch.int64, device=base.device), minimum=0)

    @property
    def batch_dependent(self) -> bool:
        """Whether predictions depend on the rest of the batch: only with the batch's statistics."""
        return self.statistics == "batch"

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Predict with the weights so far; one step up, one step down; reset if the loss has collapsed."""
        gradient_at = partial(
            entropy_gradient,
            self.classifier,
            images,
            below=self._bound,
            measure=self._measure,
            statistics=self.statistics,
            peers=self.peers,
        )

        # 1. The entropy of confident images, at the weights so far.
        logits, gradient, usable = gradient_at(self.affine, usable)
        confident = usable & (self._measure(logits) < self._bound)

        # 2. Up, to where the loss is worst nearby.
        gradient = gradient * self._trained
        worst = self.affine + self.rho * gradient / (gradient.norm() + 1e-12)

        # 3. The entropy of those still confident there decides the step down, which starts where 2. did.
        second, gradient, still = gradient_at(worst, usable, among=confident)
        still = still & confident & (self._measure(second) < self._bound)
        second, still = self.whole(second), self.whole(still)
        self._weights.step(gradient, taken=still.any())

        # 4. A moving average of the loss that is too small tells of collapse.
        self._recover(mean_entropy(second, still, self._measure), still.any())
        return Answer(logits, None, usable)

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
