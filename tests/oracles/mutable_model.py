"""The model of the oracles, as the field writes it: a module whose norm parameters are written over."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

import ramen
from ramen import testing

SCALE = 30.0  # of testing.small_classifier
CLASSES = 5


def stream(batches: int, size: int = 5, seed: int = 0) -> list[Tensor]:
    """Random batches of independent images, in fp64."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 32, 32, generator=generator, dtype=torch.float64) for _ in range(batches)]


def compare(oracle: Any, method: ramen.Method, batches: list[Tensor], atol: float) -> None:
    """Both answer a stream alike."""
    for index, images in enumerate(batches):
        found, expected = method.predict(images).logits, oracle.predict(images)
        torch.testing.assert_close(
            found, expected, rtol=0, atol=atol, msg=lambda m, i=index: f"batch {i}: {m}"
        )


class MutableModel:
    """The tower of ``testing.small_classifier`` in fp64.

    Attributes:
        model: The tower.
        parameters: Those of its norm layers, by name; no others require gradients.
        text: The class embeddings.
        optimizer: Moves the parameters; SignSGD does if there is none.
        loss: "entropy", or "come" for COME's opinion entropy.
    """

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
        self.optimizer: torch.optim.Optimizer | None = None
        self.loss = "entropy"

    def encode(self, images: Tensor) -> Tensor:
        return nn.functional.normalize(self.model(images), dim=-1)

    def logits(self, images: Tensor) -> Tensor:
        return SCALE * self.encode(images) @ self.text.T

    def entropies(self, images: Tensor) -> Tensor:
        return self.uncertainties(self.logits(images))

    def uncertainties(self, logits: Tensor) -> Tensor:
        p = logits.softmax(1)
        if self.loss == "come":
            centred = logits - logits.mean(1, keepdim=True)
            centred = centred / centred.norm(dim=1, keepdim=True) * centred.norm(dim=1, keepdim=True).detach()
            evidence = torch.cat([centred.exp(), torch.full_like(centred[:, :1], CLASSES)], 1)
            p = evidence / evidence.sum(1, keepdim=True)
        return -(p * p.log()).sum(1)

    def zero_grad(self) -> None:
        for p in self.parameters.values():
            p.grad = None

    @torch.no_grad()
    def sign_sgd(self, lr: float) -> None:
        for p in self.parameters.values():
            p -= lr * p.grad.sign()

    def use_optimizer(self, name: str, lr: float) -> None:
        """torch's own, with the momentum that is usual."""
        parameters = self.parameters.values()
        self.optimizer = {
            "sign": lambda: None,
            "sgd": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
            "adam": lambda: torch.optim.Adam(parameters, lr=lr),
        }[name]()

    def move(self, lr: float) -> None:
        """One step against the gradients; ``lr`` is that of SignSGD."""
        if self.optimizer is None:
            self.sign_sgd(lr)
        else:
            self.optimizer.step()

    def reset(self) -> None:
        self.model.load_state_dict(self.original)
        if self.optimizer is not None:
            self.optimizer.state.clear()


class AdamModel(MutableModel):
    """The same with torch's Adam; a reset puts back both, by loading copies."""

    def __init__(self, kind: str, lr: float) -> None:
        super().__init__(kind)
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=lr)
        self.fresh_optimizer = copy.deepcopy(self.optimizer.state_dict())

    def step(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def reset(self) -> None:
        super().reset()
        self.optimizer.load_state_dict(self.fresh_optimizer)


def use_batch_statistics(model: nn.Module) -> nn.Module:
    """BatchNorm layers in train mode, whose running statistics stay and are not used."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.train()
            layer.momentum = 0.0
    return model


class RobustBatchNorm(nn.Module):
    """RoTTA's: in train mode a share of the batch's statistics is mixed into the stored ones, and stays."""

    def __init__(self, original: nn.BatchNorm2d, share: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.share = original.weight, original.bias, original.eps, share
        self.mean, self.var = original.running_mean.clone(), original.running_var.clone()

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.mean, self.var
        if self.training:
            mean = (1 - self.share) * mean + self.share * x.mean((0, 2, 3))
            var = (1 - self.share) * var + self.share * x.var((0, 2, 3), correction=0)
            self.mean, self.var = mean.detach(), var.detach()
        channels = (-1, 1, 1)
        normalised = (x - mean.view(channels)) / (var.view(channels) + self.eps).sqrt()
        return normalised * self.weight.view(channels) + self.bias.view(channels)


def use_robust_batch_norm(model: nn.Module, share: float) -> list[RobustBatchNorm]:
    """Replace the BatchNorm layers; the new ones are in train mode and share weight and bias with them."""
    layers = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                layers.append(RobustBatchNorm(child, share))
                setattr(parent, name, layers[-1])
    return [layer for layer in model.modules() if isinstance(layer, RobustBatchNorm)]
