"""Losses: entropy and the contrastive loss, against plain loops."""

import math

import pytest
import torch
from torch import Tensor

from ramen.methods._contrastive import contrastive_loss
from ramen.methods._losses import entropy, mean_entropy, opinion_entropy


def test_entropy_is_minus_sum_p_ln_p() -> None:
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(0)) * 5
    for row, value in zip(logits.softmax(1).tolist(), entropy(logits).tolist(), strict=True):
        assert value == pytest.approx(-sum(p * math.log(p) for p in row), abs=1e-5)


def test_entropy_of_certain_and_half_precision_logits() -> None:
    certain = torch.tensor([[0.0, -torch.inf], [1e4, -1e4], [300.0, 0.0]], requires_grad=True)
    values = entropy(certain)
    assert values.tolist() == [0, 0, 0]
    assert torch.autograd.grad(values[1:].sum(), certain)[0][1:].isfinite().all()
    half = torch.randn(3, 5).half()
    assert entropy(half).dtype == torch.float32
    torch.testing.assert_close(entropy(half), entropy(half.float()))


def test_mean_entropy_leaves_unusable_rows_out() -> None:
    logits = torch.randn(4, 3)
    spoiled = logits.clone()
    spoiled[2] = torch.nan
    spoiled.requires_grad_()
    usable = torch.tensor([True, True, False, True])
    value = mean_entropy(spoiled, usable)
    torch.testing.assert_close(value.detach(), entropy(logits[usable]).mean())
    (gradient,) = torch.autograd.grad(value, spoiled)
    assert gradient.isfinite().all()
    assert mean_entropy(logits, torch.zeros(4, dtype=torch.bool)) == 0


def unit_rows(images: int, seed: int, width: int = 6) -> Tensor:
    rows = torch.randn(images, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(rows, dim=1)


def naive_contrastive_loss(z: Tensor, u: Tensor, scale: float, temperature: float) -> float:
    """A double loop over plain numbers."""
    images = range(len(z))
    targets = []
    for j in images:
        alike = [math.exp(float(z[j] @ z[k] + u[j] @ u[k]) / 2 / temperature) for k in images]
        targets.append([value / sum(alike) for value in alike])
    total = 0.0
    for i in images:
        exponentials = [math.exp(scale * float(z[i] @ u[j])) for j in images]
        for j in images:
            total -= targets[j][i] * math.log(exponentials[j] / sum(exponentials))
    return total / len(z)


@pytest.mark.parametrize("temperature", [0.01, 0.3])
@pytest.mark.parametrize("images", [1, 2, 7])
def test_contrastive_loss_is_a_double_loop(images: int, temperature: float) -> None:
    z, u = unit_rows(images, 0), unit_rows(images, 1)
    everyone = torch.ones(images, dtype=torch.bool)
    value = contrastive_loss(z, u, everyone, 20.0, temperature=temperature)
    assert value.item() == pytest.approx(naive_contrastive_loss(z, u, 20.0, temperature), abs=1e-10)
    if temperature == 0.01:
        assert contrastive_loss(z, u, everyone, 20.0) == value


def test_the_gradient_of_the_contrastive_loss_flows_through_its_targets_or_not() -> None:
    z, u = unit_rows(5, 0).requires_grad_(), unit_rows(5, 1)
    everyone = torch.ones(5, dtype=torch.bool)
    assert torch.autograd.gradcheck(lambda z: contrastive_loss(z, u, everyone, 3.0, temperature=0.3), (z,))
    held = torch.softmax((z @ z.T + u @ u.T) / 2 / 0.3, 1).detach()
    expected = -(held.T * torch.log_softmax(3 * z @ u.T, 1)).sum() / 5
    value = contrastive_loss(z, u, everyone, 3.0, temperature=0.3, detach_targets=True)
    torch.testing.assert_close(value, expected)
    gradients = [torch.autograd.grad(v, z)[0] for v in (value, expected)]
    torch.testing.assert_close(gradients[0], gradients[1])
    (through,) = torch.autograd.grad(contrastive_loss(z, u, everyone, 3.0, temperature=0.3), z)
    assert not torch.allclose(through, gradients[0])


@pytest.mark.parametrize("detach_targets", [False, True])
def test_the_contrastive_loss_of_a_batch_without_its_unusable_images(detach_targets: bool) -> None:
    usable = torch.tensor([True, False, True, True, False, True])
    z, u = unit_rows(6, 0), unit_rows(6, 1)
    spoiled = z.clone()
    spoiled[1], spoiled[4] = torch.nan, torch.inf
    spoiled.requires_grad_()
    kept = z[usable].requires_grad_()
    option = {"detach_targets": detach_targets, "temperature": 0.3}
    value = contrastive_loss(spoiled, u, usable, 20.0, **option)
    expected = contrastive_loss(kept, u[usable], torch.ones(4, dtype=torch.bool), 20.0, **option)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)
    (gradient,), (expected,) = torch.autograd.grad(value, spoiled), torch.autograd.grad(expected, kept)
    torch.testing.assert_close(gradient[usable], expected, rtol=0, atol=1e-12)
    assert gradient[~usable].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("usable", [[True], [True, False, False], [False, False]])
def test_one_image_or_none_has_no_contrast(usable: list[bool], dtype: torch.dtype) -> None:
    z, u = (unit_rows(len(usable), seed).to(dtype).requires_grad_() for seed in (0, 1))
    value = contrastive_loss(z, u, torch.tensor(usable), 100.0)
    assert value == 0
    assert torch.autograd.grad(value, z)[0].eq(0).all()


# -- COME's opinion entropy --------------------------------------------------------------------------


def naive_opinion_entropy(logits: list[float]) -> float:
    """As the paper defines it, number by number."""
    mean = sum(logits) / len(logits)
    evidence = [math.exp(value - mean) for value in logits]
    total = sum(evidence) + len(logits)
    masses = [*(value / total for value in evidence), len(logits) / total]
    return -sum(mass * math.log(mass) for mass in masses)


@pytest.mark.parametrize("offset", [0.0, 20.0, -300.0])
def test_opinion_entropy_is_that_of_beliefs_and_uncertainty(offset: float) -> None:
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    for row, value in zip(logits.tolist(), opinion_entropy(logits + offset).tolist(), strict=True):
        assert value == pytest.approx(naive_opinion_entropy(row), abs=1e-10)


def test_the_gradient_of_opinion_entropy_keeps_the_length_of_the_logits() -> None:
    """It is the gradient of the same without holding the length, less its part along the centred logits."""
    logits = torch.randn(9, 5, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(opinion_entropy(logits).sum(), logits)
    centred = logits - logits.mean(1, keepdim=True)
    masses = torch.cat([centred.exp(), torch.full((9, 1), 5.0, dtype=torch.float64)], 1)
    masses = masses / masses.sum(1, keepdim=True)
    (free,) = torch.autograd.grad(-(masses * masses.log()).sum(), logits)
    along = torch.nn.functional.normalize(centred.detach(), dim=1)
    expected = free - (free * along).sum(1, keepdim=True) * along
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    assert (free - expected).norm() > 0.1


def test_the_less_certain_the_smaller_the_gradient_of_opinion_entropy() -> None:
    """Compared with that of the entropy, of which it is a vanishing part."""
    logits = torch.randn(1, 5, dtype=torch.float64)
    parts = []
    for scale in (1.0, 1e-2, 1e-4):
        flat = (logits * scale).requires_grad_()
        opinion, plain = (
            torch.autograd.grad(loss(flat).sum(), flat)[0].norm() for loss in (opinion_entropy, entropy)
        )
        parts.append(float(opinion / plain))
    assert parts[0] > 20 * parts[1] > 400 * parts[2]


def test_opinion_entropy_of_equal_certain_and_half_precision_logits() -> None:
    logits = torch.tensor([[3.0, 3.0, 3.0], [1e4, -1e4, 0.0]], requires_grad=True)
    values = opinion_entropy(logits)
    assert values[0].item() == pytest.approx(naive_opinion_entropy([3.0] * 3), abs=1e-6)
    assert values[1].item() == 0
    assert torch.autograd.grad(values.sum(), logits)[0].isfinite().all()
    half = torch.randn(3, 5).bfloat16()
    assert opinion_entropy(half).dtype == torch.float32
    torch.testing.assert_close(opinion_entropy(half), opinion_entropy(half.float()))
