"""A model as the field writes it: a mutable module in fp64 whose norm layers have an optimizer."""

import copy

import torch
from torch import Tensor, nn

from ramen import testing

SCALE = 30.0  # of testing.small_classifier


class OrdinaryModel:
    """The tower of ``testing.small_classifier``; weights and Adam are put back by loading copies."""

    def __init__(self, kind: str, lr: float) -> None:
        self.model = testing.small_tower(kind).double().eval().requires_grad_(False)
        self.norms = [m for m in self.model.modules() if isinstance(m, nn.LayerNorm | nn.BatchNorm2d)]
        self.parameters = [p.requires_grad_() for m in self.norms for p in (m.weight, m.bias)]
        self.optimizer = torch.optim.Adam(self.parameters, lr=lr)
        self.original = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def reset(self) -> None:
        self.model.load_state_dict(self.original[0])
        self.optimizer.load_state_dict(self.original[1])

    def encode(self, images: Tensor) -> Tensor:
        features = self.model(images)
        return features / features.norm(dim=1, keepdim=True)

    def step(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def published_loss(images: Tensor, texts: Tensor, detach_targets: bool = False) -> Tensor:
    """What CLIPArTT and WATT minimise, image by image."""
    rows = [
        torch.softmax((z @ images.T + u @ texts.T) / 2 / 0.01, 0) for z, u in zip(images, texts, strict=True)
    ]
    targets = torch.stack(rows)
    if detach_targets:
        targets = targets.detach()
    losses = []
    for i, z in enumerate(images):
        log_p = torch.log_softmax(SCALE * (texts @ z), 0)
        losses.append(-sum(targets[j, i] * log_p[j] for j in range(len(images))))
    return sum(losses) / len(losses)


def stream(batches: int, size: int = 5, last: int = 2, seed: int = 0) -> list[Tensor]:
    """Random batches of one size; the last one is shorter."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [size] * (batches - 1) + [last]
    return [torch.randn(n, 3, 32, 32, generator=generator, dtype=torch.float64) for n in sizes]
