"""An ordinary model, as the field writes it: parameters that require gradients and are written over."""

import copy

import torch
from torch import Tensor, nn

from ramen import testing

SCALE = 30.0
CLASSES = 5


def stream(batches: int, size: int = 5, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 32, 32, generator=generator, dtype=torch.float64) for _ in range(batches)]


class MutableModel:
    """The small tower in fp64; ``parameters`` are those of its norm layers."""

    def __init__(self, kind: str) -> None:
        self.model = testing.small_tower(kind).double().eval().requires_grad_(False)
        self.text = testing.small_classifier(kind, dtype="float64").class_embeddings
        self.original = copy.deepcopy(self.model.state_dict())
        self.parameters = {
            f"{name}.{kind}": getattr(layer, kind).requires_grad_()
            for name, layer in self.model.named_modules()
            if isinstance(layer, nn.LayerNorm | nn.BatchNorm2d)
            for kind in ("weight", "bias")
        }

    def logits(self, images: Tensor) -> Tensor:
        return SCALE * nn.functional.normalize(self.model(images), dim=-1) @ self.text.T

    def entropies(self, images: Tensor) -> Tensor:
        p = self.logits(images).softmax(1)
        return -(p * p.log()).sum(1)

    def zero_grad(self) -> None:
        for p in self.parameters.values():
            p.grad = None

    @torch.no_grad()
    def sign_sgd(self, lr: float) -> None:
        for p in self.parameters.values():
            p -= lr * p.grad.sign()

    def reset(self) -> None:
        self.model.load_state_dict(self.original)
