"""Gaussians of classes: log densities by their definition, and the program equals plain torch."""

import pytest
import torch
import torch.nn.functional as F

from ramen.kernels import gaussians

SHAPES = [(1, 1, 4), (5, 3, 16), (100, 20, 70), (300, 7, 16)]


def given(images: int, classes: int, width: int, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """Embeddings, which of them count, assignments to all classes but the last, texts, first variances."""
    generator = torch.Generator().manual_seed(0)
    texts = F.normalize(torch.randn(classes, width, generator=generator), dim=1)
    near = texts[torch.arange(images) % classes] + 0.3 * torch.randn(images, width, generator=generator)
    usable = torch.arange(images) % 4 != 2
    embeddings = torch.where(usable[:, None], F.normalize(near, dim=1), 0)
    logits = 30 * near @ texts.T
    if classes > 2:
        logits[:, -1] = -1e4  # a class without any weight
    first = 0.01 + torch.rand(width, generator=generator) / 100
    return tuple(t.to(device) for t in (embeddings, usable, logits.softmax(1), texts, first))


def check(images: int, classes: int, width: int, device: str = "cpu") -> None:
    embeddings, usable, assigned, texts, first = given(images, classes, width, device)
    sums, labels = assigned.T @ gaussians.with_squares(embeddings), assigned.argmax(1)
    arguments = sums, labels, usable, assigned, texts, first, 1.5
    plain, fused = gaussians._anchored_torch(*arguments), gaussians._anchored_triton(*arguments)
    for one, two in zip(plain, fused, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


def test_log_densities_are_those_of_normal_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    x, means = torch.randn(2, 5, 8, generator=generator, dtype=torch.float64)
    variances = torch.rand(5, 8, generator=generator, dtype=torch.float64) + 0.1
    factors, constants = gaussians.density_factors(means, variances)
    found = -0.5 * (gaussians.with_squares(x) @ factors.T + constants)
    normal = torch.distributions.Normal(means, variances.sqrt())
    expected = normal.log_prob(x[:, None]).sum(2)
    common = found - expected  # a factor of the densities, the same for all
    torch.testing.assert_close(common - common.mean(1, keepdim=True), torch.zeros(5, 5).double())


def test_squared_distances_are_summed_by_assignment() -> None:
    generator = torch.Generator().manual_seed(0)
    x, assigned = torch.randn(6, 4, generator=generator), torch.rand(6, 3, generator=generator)
    centres = torch.randn(3, 4, generator=generator)
    found = gaussians.squared_distances(
        assigned.T @ gaussians.with_squares(x), assigned.sum(0)[:, None], centres
    )
    expected = (assigned[:, :, None] * (x[:, None] - centres).square()).sum(0)
    torch.testing.assert_close(found, expected)


@pytest.mark.interpreted
@pytest.mark.parametrize(("images", "classes", "width"), SHAPES)
def test_the_program_equals_torch(images: int, classes: int, width: int) -> None:
    check(images, classes, width)


@pytest.mark.gpu
@pytest.mark.parametrize(("images", "classes", "width"), [*SHAPES, (100, 100, 512), (50, 1000, 768)])
def test_the_program_equals_torch_on_a_gpu(images: int, classes: int, width: int) -> None:
    check(images, classes, width, "cuda")
