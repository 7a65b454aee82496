"""What the orders of streams are put together from."""

from collections.abc import Sequence

import numpy as np

from ramen.data.streams.protocols import Candidates
from ramen.utils import checks
from ramen.utils.random_draws import Draws, IntArray

# A count that differs from a whole number only in the last bit, such as 75 / 10 + 1/2 or the number of images
# times the sum of their proportions, counts as that number: the last bit differs between machines.
ROUNDING = 1e-9


def shuffle(indices: IntArray, draws: Draws) -> IntArray:
    """The indices in random order."""
    return indices[draws.permutation(len(indices))]


def join(parts: Sequence[IntArray]) -> IntArray:
    """One part after the other."""
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def starts(parts: Sequence[IntArray]) -> tuple[int, ...]:
    """The position at which each part begins in their sequence."""
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return (0, *ends[:-1]) if ends else ()


def domain_order(candidates: Candidates, draws: Draws, order: Sequence[str] | str | None) -> list[int]:
    """The indices of the domains in the requested order."""
    known = candidates.domain_names
    if order is None:
        return list(range(len(known)))
    if isinstance(order, str):
        checks.choice("order", order, ("random",))
        return list(draws.permutation(len(known)).tolist())
    named = list(order)
    for name in named:
        if name not in known:
            raise ValueError(f"order: there is no domain {name!r}{checks.nearest(str(name), known)}")
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise ValueError(f"order must name each domain once, got {twice!r} {named.count(twice)} times")
    if missing := [name for name in known if name not in named]:
        raise ValueError(f"order must name each domain once, {', '.join(missing)} missing")
    return [known.index(name) for name in named]
