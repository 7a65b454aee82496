"""Numbers that stay finite, in the types that were asked for."""

import pytest
import torch

from ramen.utils.numerics import aligned, all_finite, finite_or_zero, finite_rows, plain_numerics

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_or_zero(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    tensor = torch.tensor([[1.0, torch.inf, -torch.inf], [torch.nan, largest, -0.5]], dtype=dtype)
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, largest, -0.5]], dtype=dtype)
    assert torch.equal(finite_or_zero(tensor), expected)
    assert tensor[0, 1] == torch.inf  # what was given stays as it is


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 7), (40, 3, 2, 2), (40, 1)])
def test_finite_rows_are_those_of_isfinite(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(shape, generator=generator).to(dtype)
    tensor[::4] = torch.finfo(dtype).max  # of which a sum of squares would overflow
    for row, value in ((5, torch.nan), (6, torch.inf), (7, -torch.inf), (8, torch.nan)):
        tensor[row].view(-1)[-1] = value
    rows = finite_rows(tensor)
    assert torch.equal(rows, tensor.isfinite().flatten(1).all(1))
    assert (~rows).nonzero().flatten().tolist() == [5, 6, 7, 8]


def test_no_rows_are_finite_rows() -> None:
    assert finite_rows(torch.zeros(0, 3)).shape == (0,)


def test_aligned_is_the_next_multiple_of_eight() -> None:
    assert [aligned(rows) for rows in (0, 1, 7, 8, 9, 16, 75_001)] == [0, 8, 8, 8, 16, 16, 75_008]


def test_plain_numerics_ends_autocast() -> None:
    matrix = torch.ones(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (matrix @ matrix).dtype == torch.bfloat16
        with plain_numerics():
            assert (matrix @ matrix).dtype == torch.float32
            assert not torch.is_autocast_enabled("cuda")
        assert (matrix @ matrix).dtype == torch.bfloat16


def test_plain_numerics_ends_inference_mode() -> None:
    with torch.inference_mode():
        assert torch.ones(1).is_inference()
        with plain_numerics():
            tensor = torch.ones(1)
        assert torch.is_inference_mode_enabled()
    assert not tensor.is_inference()
    (2 * tensor.requires_grad_()).backward()
    assert tensor.grad == 2


def test_plain_numerics_records_gradients_though_the_caller_does_not() -> None:
    """Leaving inference mode switches them on: methods take gradients also for callers under ``no_grad``."""
    with torch.no_grad():
        with plain_numerics():
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()


def test_plain_numerics_as_a_decorator() -> None:
    @plain_numerics()
    def product(matrix: torch.Tensor) -> torch.Tensor:
        return matrix @ matrix

    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):  # it can be called again
            assert product(torch.ones(3, 3)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_all_finite_agrees_with_isfinite(dtype):
    largest = torch.finfo(dtype).max
    good = torch.tensor([0.0, -0.0, 1.0, -largest, largest, torch.finfo(dtype).tiny], dtype=dtype)
    assert all_finite(good)
    assert all_finite(good[:0])
    assert all_finite(good.view(2, 3).T)
    for bad in (torch.inf, -torch.inf, torch.nan, -torch.nan):
        for place in range(len(good)):
            assert not all_finite(good.index_fill(0, torch.tensor(place), bad))
