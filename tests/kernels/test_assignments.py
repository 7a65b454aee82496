"""Assignments: the program equals plain torch."""

import pytest
import torch

from ramen.kernels import assignments

SHAPES = [(1, 1), (1, 7), (5, 3), (100, 100), (33, 300), (70, 16)]


def check(device: str, dtype: torch.dtype, images: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    prior = 30 * torch.randn(images, classes, generator=generator, dtype=dtype).to(device)
    weights = torch.randn(images, images, generator=generator, dtype=dtype).to(device)
    assigned = prior.roll(1, 0).softmax(1)
    plain = assignments._assign_torch(prior, weights, assigned)
    fused = assignments._assign_triton(prior, weights, assigned)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for one, two in zip(plain, fused, strict=True):
        torch.testing.assert_close(two, one, rtol=tolerance, atol=tolerance)


@pytest.mark.interpreted
@pytest.mark.parametrize(("images", "classes"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_program_equals_torch(images: int, classes: int, dtype: torch.dtype) -> None:
    check("cpu", dtype, images, classes)


@pytest.mark.interpreted
def test_rows_that_are_not_contiguous() -> None:
    generator = torch.Generator().manual_seed(0)
    prior, assigned = torch.randn(2, 6, 9, generator=generator).mT.unbind(0)
    weights = torch.randn(9, 9, generator=generator).T
    for one, two in zip(
        assignments._assign_torch(prior, weights, assigned),
        assignments._assign_triton(prior, weights, assigned),
        strict=True,
    ):
        torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(("images", "classes"), [*SHAPES, (64, 1000), (2, 4096), (300, 90)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_program_equals_torch_on_a_gpu(images: int, classes: int, dtype: torch.dtype) -> None:
    check("cuda", dtype, images, classes)


@pytest.mark.gpu
def test_large_batches_and_many_classes_are_left_to_torch() -> None:
    for shape, expected in [((100, 100), True), ((0, 5), False), ((2, 5000), False), ((1000, 100), False)]:
        assert assignments._uses_triton(torch.empty(shape, device="cuda")) is expected
