"""Random stored rows and picks of them, and their weighted sums by definition."""

import torch
from torch import Tensor

from ramen.memory import codecs


def random_rows(
    codec: codecs.Codec, count: int, generator: torch.Generator, exact: bool
) -> tuple[Tensor, Tensor]:
    """Stored rows and scales; ``exact``: whole numbers and powers of two, which sum without error."""
    shape = (count, codec.scale_width) if codec.scale_width else (count,)
    if codec.dtype.is_floating_point:
        whole = torch.randint(-50, 50, (count, codec.width), generator=generator).to(codec.dtype)
        stored = whole if exact else torch.randn(whole.shape, generator=generator).to(codec.dtype)
    else:
        stored = torch.randint(0, 256, (count, codec.width), generator=generator).to(torch.uint8)
        stored = stored.view(codec.dtype)
    powers = 2.0 ** torch.randint(-3, 4, shape, generator=generator)
    scales = powers if exact else torch.rand(shape, generator=generator)
    return stored, scales.to(codec.scale_dtype)


def picks(
    queries: int, count: int, stored: int, generator: torch.Generator, exact: bool
) -> tuple[Tensor, Tensor]:
    """Row numbers and weights, ``(queries, count)`` each, for a table of ``stored`` rows."""
    rows = torch.randint(stored, (queries, count), generator=generator)
    weights = torch.randint(-4, 5, rows.shape, generator=generator).float()
    return rows, weights if exact else torch.rand(rows.shape, generator=generator)


def looped(codec: codecs.Codec, stored: Tensor, scales: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """The sums as they are defined, in fp64."""
    values = codec.decode(stored, scales).double()
    out = torch.zeros(len(rows), codec.size, dtype=torch.float64)
    for query in range(len(rows)):
        for row, weight in zip(rows[query].tolist(), weights[query].tolist(), strict=True):
            out[query] += weight * values[row]
    return out
