"""MoETTA: every norm layer has several experts, and a router chooses one for each image.

Fan et al., "MoETTA: Test-Time Adaptation Under Mixed Distribution Shifts with MoE-LayerNorm", AAAI 2026.
"""

import math
from dataclasses import dataclass
from dataclasses import field as column

import torch
from torch import Tensor

from ramen.encoder.encoder import AffineEncoder
from ramen.encoder.statistics import of_batch
from ramen.kernels.graphs import holds
from ramen.methods._losses import entropy
from ramen.methods._method import Method
from ramen.methods._optim import OnlineWeights
from ramen.methods._passes import Answer, refuse_overflowing
from ramen.methods._registry import (
    MOMENTUM,
    OPTIMIZER,
    STATISTICS,
    WITHOUT_DECAY,
    MethodInfo,
    field,
    register,
)
from ramen.utils import checks

_LOSS_SCALE = 2.0**10  # in fp16, against gradients that vanish


@register(
    MethodInfo(
        name="moetta",
        title="MoETTA: a mixture of norm layers, routed per image",
        venue="AAAI 2026",
        paper="https://arxiv.org/abs/2511.13760",
        updates="experts of all norm layers but the first, and the routers that choose between them for each "
        "image, online: never reset",
        predicts_with="the forward pass before the update",
        batch_dependent=False,
        forwards=1,
        backwards=1,
        random=True,
        notes=(
            "from MoETTA's code: experts are offsets to the pretrained weight and bias, routers see the mean "
            "token of their layer's input, the likeliest expert is used, its probability has a gradient "
            "alone; the loss with its filter and balance; SGD with momentum",
            "MoETTA's filter and its weight of the balance are multiplied from batch to batch so that they "
            "follow the mean entropy of all batches, which is what is kept here; its code keeps the "
            "entropies of the whole stream",
            "weights of images are relative to 0.4 ln C; MoETTA's code has 0.4 ln 1000",
            "if the filter keeps no image, only the balance counts; MoETTA's code then reports NaN",
            "decided here: norm layers are counted by position, and the first is that before the blocks in a "
            "CLIP. MoETTA freezes the layers 0 to 14 of a ViT-L (frozen=15)",
            "MoETTA is made for LayerNorm; here also BatchNorm, whose routers see the mean pixel. It keeps "
            "its running statistics unless statistics='batch'",
            "routers need what is inside the encoder: passes are the module's own, not fused; in fp16 the "
            "loss is scaled by 1,024",
            "routers start with random weights, decided by the seed",
        ),
    )
)
class Moetta(Method):
    """Take one step per batch of the experts that its images have used, and of the routers."""

    lr: float = field(1e-3, ge=0, doc="Step size.")
    experts: int = field(9, ge=1, saved=True, doc="Per norm layer.")
    margin: float = field(
        0.4,
        ge=0,
        doc="Entropies count as weights relative to this times ln C, the entropy of a uniform guess.",
    )
    balance: float = field(
        0.2,
        ge=0,
        doc="Weight of the even use of experts, relative to the mean entropy of the batches so far.",
    )
    frozen: int = field(1, ge=0, saved=True, doc="So many norm layers, from the first on, stay as they are.")
    statistics: str = STATISTICS
    optimizer: str = field("sgd", choices=WITHOUT_DECAY, saved=True, doc=OPTIMIZER)
    momentum: float = MOMENTUM
    seed: int = field(0, ge=0, doc="Decides the routers' weights at the start.")

    recordable = True
    joins_groups = True

    mixture: Tensor  # offsets of the experts and weights of the routers
    mean_entropy: Tensor  # over the batches so far
    batches: Tensor

    def setup(self) -> None:
        classifier = self.classifier
        layers = len({piece.layer for piece in classifier.encoder.layout})
        checks.integer("frozen", self.frozen, 0, layers - 1, at_most="norm layers - 1")
        self._layers = _layers(classifier.encoder, self.experts, self.frozen)
        start = _start(self._layers, self.experts, self.generator(place=0)).to(classifier.encoder.base)
        self._weights = OnlineWeights(
            self, self.optimizer, self.lr, momentum=self.momentum, start=start, name="mixture"
        )
        self.add_state("mean_entropy", start.new_zeros(()), minimum=0)
        self.add_state("batches", torch.zeros((), dtype=torch.int64, device=start.device), minimum=0)

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Predict with the experts so far, then take one step on the images of low entropy."""
        embeddings, gradient, mean = self._embeddings_and_gradient(images, usable)
        if not holds(gradient.isfinite().all()):
            images, usable = refuse_overflowing(self.classifier, images, usable)
            embeddings, gradient, mean = self._embeddings_and_gradient(images, usable)
        usable = usable & embeddings.isfinite().all(1)
        taken = self.whole(usable).any()
        self._weights.step(gradient, taken)
        self.mean_entropy = torch.where(taken, mean, self.mean_entropy)
        self.batches = self.batches + taken
        return Answer(self.classifier.logits(embeddings), None, usable)

    def _embeddings_and_gradient(self, images: Tensor, usable: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Also the mean entropy of the batches so far, with this one."""
        clf, given = self.classifier, len(images)
        if not given:  # this process has no part of the batch, and not every encoder takes an empty one
            images, usable = images.new_zeros(1, *images.shape[1:]), usable.new_zeros(1)
        scale = _LOSS_SCALE if clf.dtype == torch.float16 else 1.0
        with torch.enable_grad():
            mixture = self.mixture.detach().requires_grad_()
            routing = Routing(self._layers, mixture, self.experts)
            embeddings = clf.encode(
                images,
                clf.encoder.base,
                statistics=of_batch(self.statistics, usable),
                router=routing.choose,
            )
            usable = usable & embeddings.detach().isfinite().all(1)
            logits = clf.logits(torch.where(usable[:, None], embeddings, 0))
            entropies = entropy(logits)
            mean = self._mean_with(entropies.detach(), usable)
            loss = self._entropy_loss(entropies, mean, usable)
            loss = loss + self.balance * mean * self._imbalance(routing, usable)
            gradient = clf.gradient(scale * loss, mixture) / scale
        return embeddings.detach()[:given], self.summed(gradient), mean

    def _mean_with(self, entropies: Tensor, usable: Tensor) -> Tensor:
        """The mean over batches of their mean entropies, with this batch."""
        total = self.summed(torch.where(usable, entropies, 0).sum())
        own = total / self.summed(usable.sum()).clamp_min(1)
        return self.mean_entropy + (own - self.mean_entropy) / (self.batches + 1)

    def _entropy_loss(self, entropies: Tensor, bound: Tensor, usable: Tensor) -> Tensor:
        """The weighted mean entropy of the images that are not above the bound."""
        kept = usable & (entropies.detach() <= bound)
        reference = self.margin * math.log(self.classifier.num_classes)
        weights = torch.where(kept, torch.exp(reference - entropies.detach()), 0)
        return (weights * entropies).sum() / self.summed(kept.sum()).clamp_min(1)

    def _imbalance(self, routing: "Routing", usable: Tensor) -> Tensor:
        """How unevenly experts are used, over all layers; 1 for a layer that uses them evenly."""
        probabilities, chosen = (torch.stack(rows, 1) for rows in (routing.probabilities, routing.chosen))
        probabilities = torch.where(usable[:, None, None], probabilities, 0)  # (B, layers, experts)
        every = torch.arange(self.experts, device=chosen.device)
        used = (chosen[:, :, None] == every) & usable[:, None, None]
        images = self.summed(usable.sum()).clamp_min(1)
        shares = self.summed(used.sum(0)).to(probabilities.dtype) / images
        return self.experts * (probabilities.sum(0) / images * shares).sum()


@dataclass(frozen=True)
class _Layer:
    """Where the mixture of a norm layer is in the flat vector, and the sizes of its parts."""

    start: int
    size: int  # of one expert
    inputs: int  # of the router


@dataclass
class Routing:
    """The choices of one forward pass.

    Attributes:
        probabilities: ``(B, experts)`` for each layer, in the order of the pass.
        chosen: The likeliest expert of each image ``(B,)``, likewise.
    """

    layers: dict[str, _Layer]
    mixture: Tensor
    experts: int
    probabilities: list[Tensor] = column(default_factory=list)
    chosen: list[Tensor] = column(default_factory=list)

    def __post_init__(self) -> None:
        # Divided once, so that the gradients of all layers are put together once.
        layers, many = list(self.layers.values()), self.experts
        sizes = [many * size for layer in layers for size in (layer.size, layer.inputs, 1)]
        parts = iter(self.mixture[layers[0].start :].split(sizes))
        self._parts = {name: tuple(next(parts).view(many, -1) for _ in range(3)) for name in self.layers}

    def choose(self, name: str, means: Tensor) -> Tensor | None:
        """What the chosen experts of a layer add to its weight and bias ``(B, size)``, if it has experts.

        The factor is 1, with the gradient of the expert's probability relative to itself.
        """
        if name not in self.layers:
            return None
        offsets, weight, bias = self._parts[name]
        means = means.flatten(1).to(weight.dtype)
        probabilities = (means @ weight.T + bias.view(-1)).softmax(1)
        likeliest, chosen = probabilities.max(1)
        self.probabilities.append(probabilities)
        self.chosen.append(chosen)
        is_chosen = chosen[:, None] == torch.arange(self.experts, device=chosen.device)
        # what is not finite stays so
        added: Tensor = (is_chosen * (likeliest / likeliest.detach())[:, None]) @ offsets
        return added


def _layers(encoder: AffineEncoder, experts: int, frozen: int) -> dict[str, _Layer]:
    """By name, all norm layers but the first ``frozen`` ones."""
    sizes: dict[str, int] = {}
    inputs: dict[str, int] = {}
    for piece in encoder.layout:
        sizes[piece.layer] = sizes.get(piece.layer, 0) + piece.stop - piece.start
        inputs[piece.layer] = math.prod(piece.shape)
    layers: dict[str, _Layer] = {}
    start = 0
    for name in list(sizes)[frozen:]:
        layers[name] = _Layer(start, sizes[name], inputs[name])
        start += experts * (sizes[name] + inputs[name] + 1)
    return layers


def _start(layers: dict[str, _Layer], experts: int, generator: torch.Generator) -> Tensor:
    """Offsets and biases of zero, and routers with normal weights after Xavier Glorot."""
    parts = []
    for layer in layers.values():
        shape = (experts * layer.inputs,)
        weights = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        deviation = math.sqrt(2 / (layer.inputs + experts))
        parts += [weights.new_zeros(experts * layer.size), deviation * weights, weights.new_zeros(experts)]
    return torch.cat(parts)
