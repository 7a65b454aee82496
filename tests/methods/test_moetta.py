"""MoETTA against a mutable model whose norm layers are replaced by mixtures that loop over images."""

import math

import pytest
import torch
from torch import Tensor, nn

import ramen
from ramen import testing
from tests.oracles.mutable_model import CLASSES, MutableModel, stream, use_batch_statistics
from tests.oracles.mutable_model import compare as compare_answers

QUICK = {"lr": 1e-3, "experts": 3}


class MixtureNorm(nn.Module):
    """A norm layer with experts and a router; the layer itself keeps its pretrained weight and bias."""

    def __init__(self, original: nn.Module, experts: int, weight: Tensor) -> None:
        super().__init__()
        self.original, self.experts = original, experts
        size = original.weight.numel()
        self.offsets = nn.Parameter(torch.zeros(experts, 2 * size, dtype=torch.float64))
        self.router = nn.Linear(size, experts, dtype=torch.float64)
        with torch.no_grad():
            self.router.weight.copy_(weight)
            self.router.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        images = isinstance(self.original, nn.BatchNorm2d)
        found, self.probabilities, self.chosen = [], [], []
        layer = self.original
        if images:
            mean, var = layer.running_mean, layer.running_var
            if layer.training:
                mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
            normalised = (x - mean.view(-1, 1, 1)) / (var.view(-1, 1, 1) + layer.eps).sqrt()
        else:
            normalised = nn.functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        for own, row in zip(x, normalised, strict=True):
            token = own.mean((1, 2)) if images else own.reshape(-1, own.shape[-1]).mean(0)
            p = self.router(token).softmax(0)
            e = int(p.argmax())
            weight, bias = (self.offsets[e] * p[e] / p[e].detach()).chunk(2)
            weight, bias = layer.weight + weight, layer.bias + bias
            if images:
                weight, bias = weight.view(-1, 1, 1), bias.view(-1, 1, 1)
            found.append(row * weight + bias)
            self.probabilities.append(p)
            self.chosen.append(e)
        return torch.stack(found)


class Oracle(MutableModel):
    """The routers' first weights are those of the method; all else is written anew."""

    def __init__(
        self,
        kind: str,
        method: ramen.Method,
        lr: float = 1e-3,
        experts: int = 9,
        margin: float = 0.4,
        balance: float = 0.2,
        frozen: int = 1,
        optimizer: str = "sgd",
    ) -> None:
        super().__init__(kind)
        self.experts, self.margin, self.weight, self.lr = experts, margin, balance, lr
        start, place = method.state.content()["mixture"], 0
        norms = [
            (name, layer)
            for name, layer in self.model.named_modules()
            if isinstance(layer, nn.LayerNorm | nn.BatchNorm2d)
        ]
        self.mixtures, self.parameters = [], {}
        for _, layer in norms:
            layer.requires_grad_(False)
        for name, layer in norms[frozen:]:
            size = layer.weight.numel()
            place += experts * 2 * size
            weight = start[place : place + experts * size].view(experts, size)
            place += experts * (size + 1)
            mixture = MixtureNorm(layer, experts, weight)
            parent, _, child = name.rpartition(".")
            setattr(self.model.get_submodule(parent) if parent else self.model, child, mixture)
            self.mixtures.append(mixture)
            self.parameters |= {f"{name}.{kind}": p for kind, p in mixture.named_parameters()
                                if not kind.startswith("original")}  # fmt: skip
        assert place == len(start)
        self.use_optimizer(optimizer, lr)
        self.means: list[float] = []
        self.kept: list[int] = []

    def flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters.values()])

    def predict(self, images: Tensor) -> Tensor:
        logits = self.logits(images)
        entropies = self.uncertainties(logits)
        self.means.append(entropies.mean().item())
        theta = sum(self.means) / len(self.means)
        kept = entropies <= theta
        self.kept.append(int(kept.sum()))
        weights = torch.exp(self.margin * math.log(CLASSES) - entropies[kept].detach())
        loss = (weights * entropies[kept]).mean() if kept.any() else torch.zeros(())
        for mixture in self.mixtures:
            mean = torch.stack(mixture.probabilities).mean(0)
            shares = [mixture.chosen.count(e) / len(images) for e in range(self.experts)]
            uneven = self.experts * sum(mean[e] * shares[e] for e in range(self.experts))
            loss = loss + self.weight * theta * uneven
        self.zero_grad()
        loss.backward()
        for p in self.parameters.values():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        self.move(self.lr)
        return logits.detach()


def compare(oracle: Oracle, method: ramen.Method, batches: list[Tensor]) -> None:
    compare_answers(oracle, method, batches, 1e-6)
    torch.testing.assert_close(method.state.content()["mixture"], oracle.flat(), rtol=0, atol=1e-6)
    assert method.state.content()["mean_entropy"].item() == pytest.approx(
        sum(oracle.means) / len(oracle.means)
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adam", "experts": 2, "frozen": 2, "balance": 1.0},
        {"margin": 0.8, "frozen": 0, "lr": 5e-4, "seed": 3},
    ],
    ids=str,
)
def test_equals_a_mutable_model(tower_kind: str, options: dict) -> None:
    settings = {**QUICK, **options}
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("moetta", clf, **settings)
    start = method.state.content()["mixture"]
    settings.pop("seed", None)
    oracle = Oracle(tower_kind, method, **settings)
    compare(oracle, method, stream(20, 4))
    assert sum(0 < kept < 4 for kept in oracle.kept) > 10
    used = [set(mixture.chosen) for mixture in oracle.mixtures]
    assert max(map(len, used)) > 1  # images of one batch have different experts
    assert not torch.allclose(method.state.content()["mixture"], start, atol=1e-3)


def test_equals_a_mutable_model_with_its_own_settings() -> None:
    method = ramen.create("moetta", testing.small_classifier(dtype="float64"))
    compare(Oracle("vit", method), method, stream(5))


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    clf = testing.small_classifier("resnet", dtype="float64")
    settings = {**QUICK, "lr": 1e-4}
    method = ramen.create("moetta", clf, **settings, statistics="batch")
    oracle = Oracle("resnet", method, **settings)
    use_batch_statistics(oracle.model)
    compare(oracle, method, stream(20, 4))


def test_at_first_it_is_zero_shot_and_later_experts_differ() -> None:
    clf, images = testing.small_classifier(), stream(1)[0].float()
    method = ramen.create("moetta", clf, **QUICK)
    out = method.predict(images)
    torch.testing.assert_close(out.logits, out.zero_shot_logits, rtol=0, atol=1e-4)
    assert not torch.allclose(method.predict(images).logits, out.logits, atol=1e-4)
