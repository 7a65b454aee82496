"""Losses, codecs, weighted sums, devices and argument checks."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ramen.methods._contrastive import contrastive_loss
from ramen.methods._steps import entropy, mean_entropy
from ramen.utils import byte_sizes, checks, devices
from ramen.utils.pair_scores import pair_scores

# -- objectives -------------------------------------------------------------------------------------


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


# -- hashing ----------------------------------------------------------------------------------------


def test_pair_scores_are_uniform_and_independent() -> None:
    scores = pair_scores(0, torch.arange(300), torch.arange(500))
    assert scores.shape == (300, 500)
    assert scores.min() >= 0
    assert scores.max() < 1
    assert len(scores.unique()) == 150_000
    counts = torch.histc(scores.float(), bins=50, min=0, max=1)
    assert ((counts - 3000) / 3000**0.5).abs().max() < 4.5
    for other in (scores.roll(1, 0), scores.roll(1, 1), pair_scores(1, torch.arange(300), torch.arange(500))):
        assert torch.corrcoef(torch.stack([scores.flatten(), other.flatten()]))[0, 1].abs() < 0.01


def test_pair_scores_depend_on_the_numbers_alone() -> None:
    queries, entries = torch.arange(20), torch.arange(12).view(3, 4)
    whole = pair_scores(7, queries, entries)
    assert whole.shape == (20, 3, 4)
    assert torch.equal(pair_scores(7, queries[5:6], entries)[0], whole[5])
    assert torch.equal(pair_scores(7, queries, entries[1:2])[:, 0], whole[:, 1])


# -- devices ----------------------------------------------------------------------------------------


def test_free_memory_of_this_machine() -> None:
    free = devices.free_bytes(torch.device("cpu"))
    if free is not None:
        assert 2**20 < free < 2**50
    assert devices.free_bytes(torch.device("meta")) is None


def test_free_memory_respects_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_meminfo_available", lambda: 1000)
    for container, expected in ((None, 1000), (300, 300), (5000, 1000)):
        monkeypatch.setattr(devices, "_container_available", lambda c=container: c)
        assert devices.free_bytes(torch.device("cpu")) == expected
    monkeypatch.setattr(devices, "_meminfo_available", lambda: None)
    monkeypatch.setattr(devices, "_container_available", lambda: None)
    assert devices.free_bytes(torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("count", "text"), [(5, "5 B"), (2048, "2.00 KiB"), (5_785 * 2**20, "5.65 GiB"), (3 * 2**20, "3.00 MiB")]
)
def test_readable_bytes(count: int, text: str) -> None:
    assert byte_sizes.readable_bytes(count) == text


@pytest.mark.parametrize(
    ("value", "count"),
    [(7, 7), ("7", 7), ("450 MiB", 450 * 2**20), ("2GB", 2 * 10**9), (" .5 kib ", 512), ("1 TiB", 2**40)],
)
def test_parse_bytes(value: object, count: int) -> None:
    assert byte_sizes.parse_bytes("memory_budget", value) == count


@pytest.mark.parametrize("value", ["", "GiB", "-1 GiB", "1 GiBi", "1 2", "0", "0.1 B", "nan", "1e9"])
def test_text_that_is_no_number_of_bytes(value: str) -> None:
    with pytest.raises(ValueError, match="memory_budget must be a number of bytes or text such as '2 GiB'"):
        byte_sizes.parse_bytes("memory_budget", value)


@pytest.mark.parametrize("device", ["gpu", "cpu:cpu", 3.5])
def test_unknown_devices(device: object) -> None:
    with pytest.raises(ValueError, match="device must name a torch device such as 'cpu' or 'cuda', got"):
        devices.parse_device(device)


def test_dtypes() -> None:
    assert devices.parse_dtype("bfloat16") == devices.parse_dtype(torch.bfloat16) == torch.bfloat16
    with pytest.raises(ValueError, match=r"dtype must be one of .* got torch\.int8"):
        devices.parse_dtype(torch.int8)


# -- checks -----------------------------------------------------------------------------------------


def test_the_nearest_name_comes_first() -> None:
    assert checks.nearest("tentt", ["tent", "note"]) == "; did you mean 'tent'? Valid: note, tent"
    assert checks.nearest("VIT-b-32", ["ViT-B-32", "RN50"]).startswith("; did you mean 'ViT-B-32'?")
    assert checks.nearest("zzz", ["tent"]) == " Valid: tent"
    assert checks.nearest("x", []) == " (there are none)"
    assert "(100 in all)" in checks.nearest("x", [str(i) for i in range(100)])


def test_numpys_numbers_are_numbers() -> None:
    assert checks.integer("capacity", np.int64(75), 1) == 75
    assert checks.number("lr", np.float32(0.5), 0) == 0.5
    assert type(checks.integer("capacity", np.int64(75), 1)) is int
