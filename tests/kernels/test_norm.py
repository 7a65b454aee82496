"""The norm's Triton programs equal plain torch."""

import pytest
import torch
from torch import Tensor

from ramen.kernels import norm


@pytest.mark.interpreted
@pytest.mark.parametrize("with_delta", ["none", "own", "shared"])
@pytest.mark.parametrize("shared", [False, True], ids=["row_per_image", "one_vector"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_programs_equal_torch(dtype: torch.dtype, shared: bool, with_delta: str) -> None:
    check_norm(dtype, shared, with_delta, width=48)


@pytest.mark.interpreted
def test_a_width_that_is_a_power_of_two() -> None:
    check_norm(torch.float32, shared=False, with_delta="own", width=64)


def check_norm(dtype: torch.dtype, shared: bool, with_delta: str, width: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    images, tokens, size = 3, 11, 2 * width + 30
    x = random(images, tokens + 2, width).to(dtype)[:, :tokens]  # with a gap between images
    delta = {"none": None, "own": random(images, tokens, width), "shared": random(tokens, width)}[with_delta]
    delta = None if delta is None else delta.to(dtype)
    affine = random(size) if shared else random(images, size)
    for place in (norm.AffinePlace(7, 7 + width, width, 1e-5), norm.AffinePlace(7, None, width, 1e-5)):
        for shift in (random(width), None):
            plain = norm._forward_torch(x, delta, affine, place, shift)
            fused = norm._forward_triton(x, delta, affine, place, shift)
            for name in ("total", "output", "mean", "scale"):
                torch.testing.assert_close(getattr(fused, name), getattr(plain, name), rtol=1e-3, atol=1e-5)
        gradient = random(images, tokens, width).to(dtype)
        skip = None if delta is None else random(images, tokens, width).to(dtype)
        plain_rows, fused_rows = (
            torch.full((images, chunks, size), torch.nan) for chunks in (1, norm._chunks(images))
        )
        torch.testing.assert_close(
            norm._backward_triton(gradient, fused, affine, place, skip, fused_rows),
            norm._backward_torch(gradient, plain, affine, place, skip, plain_rows),
            rtol=1e-3,
            atol=1e-4,
        )
        sums = fused_rows.sum(1)
        torch.testing.assert_close(sums, plain_rows.sum(1), rtol=1e-4, atol=1e-4, equal_nan=True)
        written = width if place.bias is None else 2 * width  # and nothing else
        assert torch.equal(sums.isfinite().nonzero()[:, 1].unique(), 7 + torch.arange(written))
        assert sums[:, 7 : 7 + written].abs().max() > 1
