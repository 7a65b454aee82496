"""Random numbers that depend on what they are used for, not on when they are drawn.

Every pair of a query and an entry has a score that depends only on a seed and on the two stream numbers. It
is the same on every device and for every batch size, and there is no generator state to save.
"""

import torch
from torch import Tensor

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
