"""Pairs of images in bins of equal count by similarity: how many pairs of each bin come from one domain.

N images have about N²/2 pairs. They are processed block by block in two passes. The first pass counts them in
fine buckets of similarity, which shows the buckets that contain the edges of the bins. The second pass sorts
the pairs of those few buckets by their exact fp32 similarity. If an edge falls among equal similarities, or
between whole numbers of pairs, each side gets its fraction of them: the result does not depend on any order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.utils import checks
from ramen.utils.random_draws import Draws

_BUCKETS = 1 << 16
_BLOCK = 2048  # images; a block has this squared pairs
READINGS = ("all", "class")  # all pairs; those of one pseudo-class


@dataclass(frozen=True)
class Bins:
    """The bins of one set of pairs, from the most similar bin to the least.

    Attributes:
        pairs: How many pairs there are, or were drawn.
        same_domain: The percentage of them that come from one domain.
        shares: The same for each bin.
        edges: The similarities at the edges of the bins, from the highest to the lowest.
        errors: Standard errors of the shares, if the pairs were drawn.
    """

    pairs: int
    same_domain: float
    shares: tuple[float, ...]
    edges: tuple[float, ...]
    errors: tuple[float, ...] | None = None


@dataclass(frozen=True)
class _Counts:
    """Pairs by similarity, most similar first: similarities, how many pairs each, how many of one domain."""

    values: NDArray[np.float64]
    pairs: NDArray[np.int64]
    same: NDArray[np.int64]


def exact_bins(
    embeddings: Tensor,
    domains: Tensor,
    classes: Tensor,
    bins: int = 10,
    *,
    block: int = _BLOCK,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Bins | None]:
    """Bins of all pairs, and of those with the same pseudo-class; None for fewer pairs than bins.

    Args:
        embeddings: Unit vectors ``(N, d)``; pairs are counted on their device.
        domains: The domain of each image ``(N,)``.
        classes: The pseudo-class of each image ``(N,)``.
        bins: The number of bins.
        block: Images per block.
        progress: Called with the number of finished blocks and their total.
    """
    checks.integer("bins", bins, 1)
    pairs = _Pairs(_checked(embeddings), domains, classes, checks.integer("block", block, 1))
    if pairs.total() < bins:
        raise ValueError(f"{len(embeddings)} images have {pairs.total()} pairs, too few for {bins} bins")
    steps = 2 * pairs.blocks()
    coarse = torch.zeros(2, 2, _BUCKETS, dtype=torch.int64, device=embeddings.device)
    for done, (_, bucket, same, alike) in enumerate(pairs, 1):
        code = (alike.long() * 2 + same) * _BUCKETS + bucket
        coarse += torch.bincount(code, minlength=coarse.numel()).view_as(coarse)
        progress(done, steps)
    # pairs of one class count in both readings
    found = {"all": coarse.sum(0).cpu().numpy(), "class": coarse[1].cpu().numpy()}
    edge_buckets = {name: _edge_buckets(counts.sum(0), bins) for name, counts in found.items()}
    fine = _within_buckets(pairs, edge_buckets, lambda done: progress(pairs.blocks() + done, steps))
    results: dict[str, Bins | None] = {}
    for name, counts in found.items():
        enough = counts.sum() >= bins
        results[name] = _cut(_refined(counts, edge_buckets[name], fine[name]), bins) if enough else None
    return results


def sampled_bins(
    embeddings: Tensor, domains: Tensor, classes: Tensor, pairs: int, bins: int = 10, *, seed: int = 0
) -> dict[str, Bins | None]:
    """As ``exact_bins``, of ``pairs`` pairs drawn at random (with replacement) from each set.

    The standard errors estimate how far the shares are from those of all pairs.
    """
    embeddings = _checked(embeddings)
    checks.integer("bins", bins, 1)
    checks.integer("pairs", pairs, bins)
    if len(embeddings) < 2:
        raise ValueError(f"{len(embeddings)} image has no pairs")
    results: dict[str, Bins | None] = {}
    groups = {"all": torch.zeros_like(classes), "class": classes}
    for name in READINGS:
        drawn = draw_pairs(groups[name].cpu().numpy(), pairs, Draws(seed, f"pairs: {name}"))
        if drawn is None:
            results[name] = None
            continue
        left, right = (torch.from_numpy(side).to(embeddings.device) for side in drawn)
        similarity = torch.cat(
            [
                (embeddings[a] * embeddings[b]).sum(1)
                for a, b in zip(left.split(_BLOCK * 16), right.split(_BLOCK * 16), strict=True)
            ]
        )
        same = (domains.to(left.device)[left] == domains.to(left.device)[right]).long()
        counts = _sorted_counts(similarity, same)
        results[name] = replace(_cut(counts, bins), errors=_errors(counts, bins))
    return results


def draw_pairs(
    groups: NDArray[np.int64], count: int, draws: Draws
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """``count`` pairs of different images of one group, each such pair as likely; None if there is none."""
    order = np.argsort(groups, kind="stable")
    _, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    ordered_pairs = np.cumsum(sizes * (sizes - 1))
    if ordered_pairs[-1] == 0:
        return None
    number = (draws.uniform(count) * ordered_pairs[-1]).astype(np.int64)
    group = np.searchsorted(ordered_pairs, number, side="right")
    within = number - (ordered_pairs - sizes * (sizes - 1))[group]
    first, second = np.divmod(within, sizes[group] - 1)
    second += second >= first  # an image is not paired with itself
    return order[starts[group] + first], order[starts[group] + second]


def _checked(embeddings: Tensor) -> Tensor:
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise ValueError(
            f"embeddings must be floats (images, width), got {embeddings.dtype} {tuple(embeddings.shape)}"
        )
    bad = int((~embeddings.isfinite().all(1)).sum())
    if bad:
        raise ValueError(f"embeddings must be finite, got {bad} of {len(embeddings)} that are not")
    return embeddings.float()


class _Pairs:
    """Every pair once, a block at a time: similarity, bucket, whether of one domain, of one class."""

    def __init__(self, embeddings: Tensor, domains: Tensor, classes: Tensor, block: int) -> None:
        device = embeddings.device
        self.embeddings, self.block = embeddings, block
        self.domains, self.classes = domains.to(device), classes.to(device)

    def total(self) -> int:
        return len(self.embeddings) * (len(self.embeddings) - 1) // 2

    def blocks(self) -> int:
        rows = -(-len(self.embeddings) // self.block)
        return rows * (rows + 1) // 2

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        starts = range(0, len(self.embeddings), self.block)
        for top in starts:
            for left in starts[top // self.block :]:
                yield self._block(slice(top, top + self.block), slice(left, left + self.block))

    def _block(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        similarity = self.embeddings[rows] @ self.embeddings[columns].T
        same = self.domains[rows, None] == self.domains[None, columns]
        alike = self.classes[rows, None] == self.classes[None, columns]
        if rows == columns:
            upper = torch.ones_like(same).triu(1)
            similarity, same, alike = similarity[upper], same[upper], alike[upper]
        similarity = similarity.flatten()
        # rounding keeps the order, so a bucket holds a range of similarities and no other
        bucket = ((similarity + 1) * (_BUCKETS // 2)).long().clamp_(0, _BUCKETS - 1)
        return similarity, bucket, same.flatten(), alike.flatten()


def _edge_buckets(counts: NDArray[np.int64], bins: int) -> list[int]:
    """The buckets, counted from the lowest similarity, that the edges of the bins fall into."""
    total = int(counts.sum())
    if total < bins:
        return []
    below = np.cumsum(counts)
    # for an edge exactly between two buckets the upper one: its lowest pair ends the bin
    edges = np.searchsorted(below, np.arange(bins) * total / bins, side="right")
    return sorted({*edges.tolist(), int(np.flatnonzero(counts)[-1])})


def _within_buckets(
    pairs: _Pairs, edge_buckets: dict[str, list[int]], progress: Callable[[int], object]
) -> dict[str, _Counts]:
    """The pairs of those buckets by exact similarity, for each set of pairs."""
    device = pairs.embeddings.device
    masks = {name: torch.zeros(_BUCKETS, dtype=torch.bool, device=device) for name in edge_buckets}
    for name, buckets in edge_buckets.items():
        masks[name][buckets] = True
    parts: dict[str, list[Tensor]] = {name: [] for name in edge_buckets}
    for done, (similarity, bucket, same, alike) in enumerate(pairs, 1):
        for name, mask in masks.items():
            chosen = mask[bucket] if name == "all" else mask[bucket] & alike
            values, count, of_one = _merged(similarity[chosen], same[chosen].long())
            parts[name].append(torch.stack([values.double(), count.double(), of_one.double()]))
            if len(parts[name]) >= 64:  # so that what is kept stays as small as the different values
                parts[name] = [_merge_again(parts[name])]
        progress(done)
    merged = {name: _merge_again(found).cpu().numpy() for name, found in parts.items()}
    return {
        name: _Counts(m[0, ::-1], m[1, ::-1].astype(np.int64), m[2, ::-1].astype(np.int64))
        for name, m in merged.items()
    }


def _merged(values: Tensor, same: Tensor, count: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Different values, rising; how many pairs each has, and how many of them are of one domain."""
    different, place = values.unique(return_inverse=True)
    zeros = torch.zeros(len(different), dtype=same.dtype, device=values.device)
    counted = zeros.index_add(0, place, torch.ones_like(same) if count is None else count)
    return different, counted, zeros.index_add(0, place, same)


def _merge_again(parts: Sequence[Tensor]) -> Tensor:
    values, count, same = torch.cat(list(parts), 1)  # counts below 2**53 are exact in fp64
    different, counted, of_one = _merged(values, same, count)
    return torch.stack([different, counted, of_one])


def _sorted_counts(values: Tensor, same: Tensor) -> _Counts:
    different, counted, of_one = (t.flip(0).cpu().numpy() for t in _merged(values, same))
    return _Counts(different.astype(np.float64), counted, of_one)


def _refined(coarse: NDArray[Any], buckets: list[int], fine: _Counts) -> _Counts:
    """All pairs, most similar first: exact in the buckets with edges, whole buckets elsewhere."""
    counts = coarse.sum(0)
    if int(fine.pairs.sum()) != int(counts[buckets].sum()):
        raise RuntimeError(
            "similarities differ between the two passes: matrix products are not reproducible on this device "
            "(torch.use_deterministic_algorithms may help)"
        )
    others = np.setdiff1d(np.flatnonzero(counts), buckets)
    middles = (others + 0.5) / (_BUCKETS // 2) - 1  # only their order matters: they contain no edge
    values = np.concatenate([fine.values, middles])
    order = np.argsort(-values, kind="stable")
    return _Counts(
        values[order],
        np.concatenate([fine.pairs, counts[others]])[order],
        np.concatenate([fine.same, coarse[1][others]])[order],
    )


def _cut(counts: _Counts, bins: int) -> Bins:
    total, same = int(counts.pairs.sum()), int(counts.same.sum())
    ranks = np.arange(bins + 1) * total / bins
    shares = 100 * np.diff(_same_up_to(ranks, counts)) * bins / total
    reached = np.cumsum(counts.pairs)
    last = np.searchsorted(reached, ranks, side="left").clip(0, len(reached) - 1)
    return Bins(total, 100 * same / total, tuple(shares.tolist()), tuple(counts.values[last].tolist()))


def _same_up_to(ranks: NDArray[np.float64], counts: _Counts) -> NDArray[np.float64]:
    """How many of the ``ranks`` most similar pairs come from one domain."""
    reached, same = (np.concatenate([[0], np.cumsum(column)]) for column in (counts.pairs, counts.same))
    return np.asarray(np.interp(ranks, reached, same))


def _errors(counts: _Counts, bins: int) -> tuple[float, ...]:
    """Standard errors in percent of the shares of independent pairs.

    The delta method: with fixed edges, a bin's share would have a binomial error. The edges are
    estimated too; they move pairs in and out that come from one domain as often as those around the edge.
    """
    total = int(counts.pairs.sum())
    ranks, reach = np.arange(bins + 1) * total / bins, total / (4 * bins)
    shares = np.diff(_same_up_to(ranks, counts)) * bins / total
    at_edge = (_same_up_to(ranks + reach, counts) - _same_up_to(ranks - reach, counts)) / (2 * reach)
    above, below = at_edge[:-1], at_edge[1:]
    before, within = np.arange(bins) / bins, 1 / bins  # shares of the pairs above a bin, and in it
    mean = before * (above - below) + within * (shares - below)
    square = before * (above - below) ** 2
    square += within * (shares * (1 - below) ** 2 + (1 - shares) * below**2)
    return tuple((100 * bins * np.sqrt((square - mean**2) / total)).tolist())
