"""Numbers that stay finite and keep their dtype."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_EXPONENTS = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}  # all of these bits are set if it is not finite
_PIECE = 1 << 22  # numbers that stay in a CPU's cache


@contextmanager
def plain_numerics() -> Iterator[None]:
    """Compute without autocast and inference mode, even if the caller has enabled them; also a decorator.

    Autocast would change dtypes. A tensor created in inference mode can neither be written to later nor take
    part in a backward pass.
    """
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


def in_bfloat16_on_a_cpu(tensor: Tensor) -> bool:
    """Whether ``tensor`` is one of those for which plain torch would convert back and forth."""
    return tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu"


def finite_or_zero(tensor: Tensor) -> Tensor:
    """Replace numbers that are not finite by zeros.

    >>> finite_or_zero(torch.tensor([1.0, torch.inf, -torch.inf, torch.nan])).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    return torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)


def all_finite(numbers: Tensor) -> bool:
    """Whether every number is finite.

    For numbers of two bytes by their bits, in pieces: ``isfinite`` takes ten times as long there on a CPU.

    >>> all_finite(torch.tensor([1.0, -2.0]).half()), all_finite(torch.tensor([1.0, torch.inf]).half())
    (True, False)
    """
    exponent = _EXPONENTS.get(numbers.dtype)
    if exponent is None:
        return bool(numbers.isfinite().all())
    pieces = numbers.detach().reshape(-1).view(torch.int16).split(_PIECE)
    return not any(bool(((piece & exponent) == exponent).any()) for piece in pieces)


def finite_rows(tensor: Tensor) -> Tensor:
    """Whether all numbers of each row are finite, with fewer kernel launches than ``torch.isfinite``.

    >>> finite_rows(torch.tensor([[1.0, -3e38], [torch.inf, 0.0], [0.0, torch.nan]])).tolist()
    [True, False, False]
    """
    largest: Tensor = torch.linalg.vector_norm(tensor.flatten(1), torch.inf, dim=1)
    return largest < torch.inf


def aligned(rows: int) -> int:
    """The next multiple of eight: matrix products are many times slower with odd sizes.

    >>> aligned(75_001)
    75008
    """
    return -(-rows // 8) * 8


def running_counts(groups: Tensor, counted: Tensor, number: int) -> Tensor:
    """``(B, number)``: how many of the first rows, up to and including each, belong to each group.

    >>> running_counts(torch.tensor([1, 0, 1]), torch.tensor([True, False, True]), 2).tolist()
    [[0, 1], [0, 1], [0, 2]]
    """
    group = torch.arange(number, device=groups.device)
    return ((groups == group[:, None]) & counted).cumsum(1).T  # a GPU is only fast along the last dimension


_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def pair_scores(seed: int, queries: Tensor, entries: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), fp64, of shape ``(*queries.shape, *entries.shape)``; both int64."""
    return scores_of_pairs(seed, queries.view(*queries.shape, *(1 for _ in entries.shape)), entries)


def scores_of_pairs(seed: int, queries: Tensor, entries: Tensor) -> Tensor:
    """The same for each query and the entry in its place; the shapes are broadcast."""
    keys = _mix(queries + _signed((seed + 1) * _GOLDEN))
    mixed = _mix(keys + entries * _signed(_GOLDEN))
    return _shift(mixed, 11).to(torch.float64) * 2.0**-53


def row_keys(rows: Tensor) -> Tensor:
    """A number ``(B,)``, int64, for the content of each row of floats ``(B, ...)``; equal for equal rows.

    It can stand for a stream number if draws are not to depend on a row's place in the stream. Whole numbers
    are added up, so that it is the same on every device and whatever rows are beside it.
    """
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()]
    content = (rows.flatten(1) + 0.0).view(bits).to(torch.int64)  # adding 0 makes -0 and 0 equal
    weights = _mix(torch.arange(1, content.shape[1] + 1, device=rows.device) * _signed(_GOLDEN)) | 1
    return (content * weights).sum(1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64; products overflow on purpose."""
    x = (x ^ _shift(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shift(x, 27)) * _signed(_MIX_2)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A right shift that fills with zeros; that of int64 fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value
