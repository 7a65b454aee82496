"""NOTE: entropy minimisation on a memory that stays balanced over predicted classes.

Gong et al., "NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation", NeurIPS 2022.
"""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ramen.encoder.batchnorm_statistics import choose
from ramen.memory.image_memory import ImageMemory
from ramen.memory.reservoir import Reservoir
from ramen.methods._answers import Answer
from ramen.methods._base import Method
from ramen.methods._info import MethodInfo
from ramen.methods._online_weights import WITHOUT_DECAY, OnlineWeights
from ramen.methods._registry import register
from ramen.methods._steps import entropy_gradient, shared_logits
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.pair_scores import pair_scores
from ramen.utils.peers import Group


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
    """Take one entropy step per batch on a memory of past images; all later batches share the weights.

    Args:
        classifier: What it adapts.
        lr: Step size. The paper's: mixed streams 2e-5 (CIFAR-C), 1e-4 (ImageNet-C), 2e-5 (DomainNet); single
            domains 1e-4 (CIFAR-10-C), 2e-4 (CIFAR-100-C), 2e-3 (ImageNet-C), 1e-4 (DomainNet).
        memory: How many images the memory holds. The paper's: the batch size, 100, or 50 for ViT-L/14;
            NOTE's own: 64.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images that are encoded together, from the batch or from the memory.
        optimizer: "sign" moves every parameter by ``lr`` against the sign of its gradient, "sgd" along the
            gradient, "adam" as ``torch.optim.Adam`` does.
        momentum: Of "sgd"; the others do not use it.
        seed: Decides which images the memory keeps.
        group: As for every method.
    """

    state_parameters = ("memory", "statistics", "optimizer")
    later_parameters: ClassVar = {"optimizer": "sign"}
    joins_groups = True

    affine: Tensor

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 2e-5,
        memory: int = 100,
        *,
        statistics: str = "source",
        optimizer: str = "sign",
        momentum: float = 0.9,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.lr = checks.number("lr", lr, 0)
        self.memory = checks.integer("memory", memory, 1)
        self.statistics = choose(statistics, classifier.encoder.base_statistics, alone=group is None)
        self.optimizer = checks.choice("optimizer", optimizer, WITHOUT_DECAY)
        self.momentum = checks.number("momentum", momentum, 0)
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
        # Which images stay is decided on the host: on a GPU the passes are recorded, not the whole step.
        self._logits = self.record(partial(shared_logits, classifier, statistics=self.statistics))
        self._gradient = self.record(partial(entropy_gradient, classifier, statistics=self.statistics))

    @property
    def batch_dependent(self) -> bool:
        """Whether predictions depend on the rest of the batch: only with the batch's statistics."""
        return self.statistics == "batch"

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Predict with the weights so far, renew the memory, take one step on it."""
        usable = usable & self._remembered.storable(images)
        logits, usable = self._logits(images, self.affine, usable)
        if self._remember(images, logits.argmax(1), usable):
            stored = self._remembered.images
            every = torch.ones(len(stored), dtype=torch.bool, device=stored.device)
            _, gradient, _ = self._gradient(stored, self.affine, every)
            self._weights.step(self.averaged(gradient))
        return Answer(logits, None, usable)

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
