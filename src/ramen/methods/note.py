"""NOTE: entropy minimisation on a memory that stays balanced over predicted classes.

Gong et al., "NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation", NeurIPS 2022.
"""

import torch
from torch import Tensor

from ramen.memory.images import ImageMemory
from ramen.memory.policies import Reservoir
from ramen.methods._losses import entropy
from ramen.methods._method import Method
from ramen.methods._optim import OnlineWeights
from ramen.methods._passes import Answer, Pass, Steps
from ramen.methods._registry import (
    MOMENTUM,
    OPTIMIZER,
    STATISTICS,
    WITHOUT_DECAY,
    MethodInfo,
    field,
    register,
)
from ramen.utils.numerics import pair_scores


@register(
    MethodInfo(
        name="note",
        title="NOTE: continual test-time adaptation with a prediction-balanced reservoir",
        venue="NeurIPS 2022",
        paper="https://arxiv.org/abs/2208.05117",
        updates="weight and bias of all norm layers, online: never reset within a stream",
        predicts_with="the forward pass before the update",
        batch_dependent=False,
        forwards=2,
        backwards=1,
        batch_sized=("memory",),
        random=True,
        notes=(
            "from the Ramen paper: SignSGD, its learning rates, a memory as large as the batch (100; for "
            "ViT-L/14 50: pass memory=50)",
            "from NOTE's paper and code: the reservoir's rules, pseudo-labels at arrival, the memory's "
            "entropy as loss; there with Adam (optimizer='adam', lr=1e-4) and memory=64",
            "decided here: one update per batch of any size, on the whole memory; a memory larger than the "
            "batch costs proportionally more passes",
            "NOTE's instance-aware BatchNorm is left out: it needs a model that was trained with it. "
            "BatchNorm keeps its running statistics, as in Ramen's code; statistics='batch' uses those of "
            "the batch for the prediction and those of the memory for the step, which makes an image's "
            "prediction depend on the rest of its batch. Pseudo-labels then come from the batch's logits; "
            "NOTE's code passes each image alone for its pseudo-label",
            "random draws depend on the seed and the number of images so far, not on the batch size",
        ),
    )
)
class Note(Method):
    """Take one entropy step per batch on a memory of past images; all later batches share the weights."""

    lr: float = field(
        2e-5,
        ge=0,
        doc="Step size. The paper's: mixed streams 2e-5 (CIFAR-C), 1e-4 (ImageNet-C), 2e-5 (DomainNet); "
        "single domains 1e-4 (CIFAR-10-C), 2e-4 (CIFAR-100-C), 2e-3 (ImageNet-C), 1e-4 (DomainNet).",
    )
    memory: int = field(
        100,
        ge=1,
        saved=True,
        doc="How many images the memory holds. The paper's: the batch size, 100, or 50 for ViT-L/14; "
        "NOTE's own: 64.",
    )
    statistics: str = STATISTICS
    optimizer: str = field("sign", choices=WITHOUT_DECAY, saved=True, before="sign", doc=OPTIMIZER)
    momentum: float = MOMENTUM
    seed: int = field(0, ge=0, doc="Decides which images the memory keeps.")

    joins_groups = True

    affine: Tensor

    def setup(self) -> None:
        classifier = self.classifier
        self._weights = OnlineWeights(self, self.optimizer, self.lr, momentum=self.momentum)
        reservoir = Reservoir(self.memory, classifier.num_classes)
        self._remembered = self.add_memory(
            ImageMemory(
                reservoir,
                self.memory,
                classifier.dtype,
                classifier.device,
                classifier.image_size,
                self.peers,
            )
        )

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Predict with the weights so far, renew the memory, take one step on it."""
        statistics = self.statistics
        usable = usable & self._remembered.storable(images)
        seen = yield Pass(images, self.affine, None, usable, statistics=statistics)
        if self._remember(images, seen.logits.argmax(1), seen.usable):
            stored = self._remembered.images
            every = torch.ones(len(stored), dtype=torch.bool, device=stored.device)
            learned = yield Pass(stored, self.affine, entropy, every, statistics=statistics, common=True)
            self._weights.step(learned.gradient)
        return Answer(seen.logits, None, seen.usable)

    def _remember(self, images: Tensor, labels: Tensor, usable: Tensor) -> bool:
        """Offer a batch to the memory, one image after the other; False if there was none to offer."""
        # the batch's one transfer to the host
        arriving: list[int] = self.whole(torch.where(usable, labels, -1)).tolist()
        first = sum(self._remembered.policy.seen)
        numbers = torch.arange(first, first + len(arriving), device="cpu")
        draws = iter(pair_scores(self.seed, numbers, torch.arange(2, device="cpu")).tolist())
        for index, label in enumerate(arriving):
            if label >= 0:
                self._remembered.offer(images, index, label, next(draws))
        self._remembered.settle()
        return any(label >= 0 for label in arriving)
