"""What kernels compute in bfloat16 on a CPU equals the same in fp64, but for the rounding of bfloat16."""

import pytest
import torch
from torch import Tensor

from ramen.kernels import activation, attention, norm

WIDTH = 48


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def near(found: Tensor, expected: Tensor, error: float = 0.02) -> bool:
    return bool((found.double() - expected.double()).norm() < error * expected.double().norm())


@pytest.mark.parametrize("shared", [False, True], ids=["row_per_image", "one_vector"])
@pytest.mark.parametrize("bias", [7 + WIDTH, None])
@pytest.mark.parametrize("delta_shape", [None, (3, 11, WIDTH), (11, WIDTH)])
def test_norm(delta_shape: tuple[int, ...] | None, bias: int | None, shared: bool) -> None:
    place = norm.AffinePlace(7, bias, WIDTH, 1e-5)
    x = random(3, 13, WIDTH, seed=0).bfloat16()[:, :11]  # with a gap between images
    delta = None if delta_shape is None else random(*delta_shape, seed=1).bfloat16()
    gradient, skip = (random(3, 11, WIDTH, seed=seed).bfloat16() for seed in (2, 3))
    affine = random(*(() if shared else (3,)), 2 * WIDTH + 30, seed=4)
    shift = random(WIDTH, seed=5)

    def exact(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.double()

    found = norm.forward(x, delta, affine, place)
    assert found.output.dtype == torch.bfloat16
    assert found.mean.dtype == found.scale.dtype == torch.float32
    total = found.total.double()  # what is normalised is what was rounded
    expected = norm.forward(total, None, affine.double(), place)
    torch.testing.assert_close(found.mean.double(), expected.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.scale.double(), expected.scale, rtol=1e-5, atol=0)
    assert near(found.output, expected.output, 4e-3)
    assert near(found.total, x.double() if delta is None else x.double() + delta.double(), 4e-3)
    shifted = norm.forward(x, delta, affine, place, shift).output
    assert near(shifted, norm.forward(total, None, affine.double(), place, shift.double()).output, 4e-3)

    for around in (None, skip):
        rows, exact_rows = (
            torch.full((3, 1, 2 * WIDTH + 30), torch.nan, dtype=d) for d in (None, torch.float64)
        )
        back = norm.backward(gradient, found, affine, place, around, rows)
        exact_back = norm.backward(
            gradient.double(), expected, affine.double(), place, exact(around), exact_rows
        )
        assert near(back, exact_back, 6e-3)
        torch.testing.assert_close(rows.double(), exact_rows, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("size", [1, 2])  # of queries and keys: scores of up to 4 and 16
@pytest.mark.parametrize(("tokens", "heads", "head_width"), [(5, 2, 16), (77, 3, 64), (50, 1, 24)])
def test_attention(tokens: int, heads: int, head_width: int, size: int) -> None:
    qkv = size * random(2, tokens, 3 * heads * head_width, seed=0).bfloat16()
    gradient = random(2, tokens, heads * head_width, seed=1).bfloat16()
    found = attention.forward((qkv,), heads, keep=True)
    expected = attention.forward((qkv.double(),), heads, keep=True)
    assert near(found.output, expected.output.detach(), 4e-3)
    (back,) = attention.backward(gradient, found, heads)
    (exact,) = attention.backward(gradient.double(), expected, heads)
    for part, exact_part in zip(back.chunk(3, -1), exact.chunk(3, -1), strict=True):
        assert near(part, exact_part, 6e-3)


@pytest.mark.parametrize("kind", [*activation.KINDS, *activation.GATES])
def test_activation(kind: str) -> None:
    x = torch.linspace(-8, 8, 5002).bfloat16()[None]
    gradient = random(1, x.shape[1] // (2 if kind in activation.GATES else 1), seed=0).bfloat16()
    assert near(activation.forward(x, kind), activation.forward(x.double(), kind), 6e-3)
    found = activation.backward(gradient.clone(), x, kind)
    assert near(found, activation.backward(gradient.double(), x.double(), kind), 0.01)
