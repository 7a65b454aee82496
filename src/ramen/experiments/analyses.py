"""Two measurements of the paper that are no runs: pairs of images by similarity, Ramen without its cache."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.experiments.measure import seconds
from ramen.methods._losses import entropy, unit_rows
from ramen.methods._passes import Support, sample_gradients
from ramen.methods._registry import create
from ramen.methods.ramen import Ramen
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.draws import Draws
from ramen.utils.numerics import plain_numerics

PAIRS = 10_000_000  # their standard error is at most 0.05 points
_BLOCK = 1 << 15  # pairs whose embeddings are multiplied together
_TIMED_BATCHES = 5  # the last ones, when the memory is fullest


# -- similarity -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bins:
    """Pairs of images in bins of equal count, from the most similar bin to the least."""

    same_domain: float  # the percentage of all pairs that come from one domain
    shares: tuple[float, ...]  # the same for each bin
    errors: tuple[float, ...]  # the standard errors of the shares


def similarity(
    classifier: ZeroShotClassifier,
    stream: Stream,
    *,
    batch: int = 100,
    pairs: int = PAIRS,
    bins: int = 10,
    seed: int = 0,
) -> Bins:
    """Do similar images come from the same domain? Pairs drawn at random, binned by cosine similarity."""
    embeddings = embed(classifier, stream, batch)
    usable = embeddings.isfinite().all(1)
    domains = torch.from_numpy(stream.domain.copy()).to(embeddings.device)[usable]
    embeddings = embeddings[usable].float()
    drawn = draw_pairs(checks.integer("images", len(embeddings), 2), pairs, Draws(seed, "pairs: all"))
    left, right = (torch.from_numpy(side).to(embeddings.device) for side in drawn)
    blocks = zip(left.split(_BLOCK), right.split(_BLOCK), strict=True)
    alike = torch.cat([(embeddings[a] * embeddings[b]).sum(1) for a, b in blocks])
    return binned(alike, domains[left] == domains[right], bins)


@plain_numerics()
@torch.no_grad()
def embed(classifier: ZeroShotClassifier, stream: Stream, batch: int) -> Tensor:
    """Zero-shot embeddings ``(N, d)`` of a stream, in its order."""
    return torch.cat([classifier.encode(_read(classifier, stream, part)) for part in stream.batches(batch)])


def draw_pairs(images: int, count: int, draws: Draws) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``count`` ordered pairs of different images, each pair as likely."""
    number = (draws.uniform(count) * images * (images - 1)).astype(np.int64)
    first, second = np.divmod(number, images - 1)
    return first, second + (second >= first)  # an image is not paired with itself


def binned(similarities: Tensor, same: Tensor, bins: int = 10) -> Bins:
    """Bins of equal count of pairs that were drawn independently, with ``same`` if of one domain.

    The standard errors follow from the delta method: with fixed edges, a bin's share would have a binomial
    error. The edges are estimated too; they move pairs in and out that come from one domain as often as those
    around the edge.
    """
    order = similarities.argsort(descending=True, stable=True)  # equal ones stay in the order of their draws
    total = checks.integer("pairs", len(order), bins)
    counted = np.concatenate([[0], np.cumsum(same[order].cpu().numpy())])

    def same_up_to(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.interp(ranks, np.arange(total + 1), counted))

    ranks, reach = np.arange(bins + 1) * total / bins, total / (4 * bins)
    shares = np.diff(same_up_to(ranks)) * bins / total
    at_edge = (same_up_to(ranks + reach) - same_up_to(ranks - reach)) / (2 * reach)
    above, below = at_edge[:-1], at_edge[1:]
    before, within = np.arange(bins) / bins, 1 / bins  # shares of the pairs above a bin, and in it
    mean = before * (above - below) + within * (shares - below)
    square = before * (above - below) ** 2
    square += within * (shares * (1 - below) ** 2 + (1 - shares) * below**2)
    errors = 100 * bins * np.sqrt((square - mean**2) / total)
    return Bins(100 * counted[-1] / total, tuple((100 * shares).tolist()), tuple(errors.tolist()))


# -- without the cache ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheTimes:
    """Seconds of Ramen with its cache, and what it takes to recompute the gradients of a support set."""

    cached: float  # of one image, as Ramen answers it
    entry: float  # to recompute the gradient of one entry from its image
    support: float  # entries that an image retrieved, on average over the queries
    most: int  # entries that it could retrieve from a full memory
    queries: int  # over how many images this was measured

    @property
    def uncached(self) -> float:
        """Of one image whose support set is full: as with the cache, and the gradients on top."""
        return self.cached + self.entry * self.most


def without_cache(
    classifier: ZeroShotClassifier,
    stream: Stream,
    parameters: Mapping[str, Any] | None = None,
    *,
    queries: int = 10,
    after: int = 1000,
    batch: int = 100,
    seed: int = 0,
) -> CacheTimes:
    """Time Ramen on a part of a stream, and the gradients of some images' support sets.

    They are recomputed in the fastest way, ``batch`` images in one backward pass with shared weights.

    Args:
        classifier: What is adapted.
        stream: Its images are answered in order, ``batch`` at a time.
        parameters: Ramen's parameters.
        queries: How many images' support sets are recomputed.
        after: How many images fill the memory first (whole batches).
        batch: Images per batch.
        seed: Ramen's seed.
    """
    checks.integer("queries", queries, 1)
    if checks.integer("after", after, 0) + queries > len(stream):
        raise ValueError(
            f"after + queries must be at most the stream's {len(stream)} images, got {after} + {queries}"
        )
    method = create("ramen", classifier, seed=seed, **(parameters or {}))
    assert isinstance(method, Ramen)
    times: list[tuple[float, int]] = []  # seconds and images of each batch
    spent: list[tuple[float, int]] = []  # seconds and entries of each query
    fresh_from = 0
    for part in stream.batches(batch):
        images = _read(classifier, stream, part)
        if part.start in stream.resets:
            method.reset()
            fresh_from = part.start  # the numbers of entries count from there
        support, taken = _timed(classifier, partial(_support, method, images))
        times.append((taken, len(images)))
        for row in range(min(len(images), queries - len(spent)) if part.start >= after else 0):
            chosen = support.valid[row]
            positions = (support.numbers[row][chosen] + fresh_from).tolist()
            if positions:
                entries = torch.cat([_read(classifier, stream, slice(n, n + 1)) for n in positions])
                weights, unit = support.weights[row][chosen].to(classifier.device), method.gradients == "unit"
                again = partial(recomputed_gradient, classifier, entries, weights, batch, unit=unit)
                spent.append((_timed(classifier, again)[1], len(positions)))
        if len(spent) == queries:
            break
    if not spent:
        raise ValueError("no query has a support set: its images or gradients are not finite")
    timed = times[1:][-_TIMED_BATCHES:] or times  # the first call includes preparation
    entries_seen = sum(count for _, count in spent)
    return CacheTimes(
        cached=sum(one for one, _ in timed) / sum(count for _, count in timed),
        entry=sum(one for one, _ in spent) / entries_seen,
        support=entries_seen / len(spent),
        most=classifier.num_classes * int(method.topk),
        queries=len(spent),
    )


def _support(method: Ramen, images: Tensor) -> Support:
    support = method.predict(images, return_support=True).support
    assert support is not None
    return support


def _timed(classifier: ZeroShotClassifier, call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and how many seconds it takes."""
    found: list[Any] = []
    taken = seconds(lambda: found.append(call()), classifier.device)
    return found[0], taken


def _read(classifier: ZeroShotClassifier, stream: Stream, part: slice) -> Tensor:
    return classifier.preprocess(stream.read(part)).to(classifier.device)


@plain_numerics()
def recomputed_gradient(
    classifier: ZeroShotClassifier, images: Tensor, weights: Tensor, batch: int, *, unit: bool = False
) -> Tensor:
    """The weighted sum ``(G,)`` of the gradients of the images' entropies, each at ``unit`` length if so."""
    base = classifier.encoder.base
    total = torch.zeros_like(base)
    for part, weight in zip(images.split(batch), weights.split(batch), strict=True):
        if unit:
            with torch.no_grad():
                total += weight @ unit_rows(sample_gradients(classifier, part)[3])
            continue
        with torch.enable_grad():
            affine = base.detach().requires_grad_()
            entropies = entropy(classifier.logits(classifier.encode(part, affine)))
            total += classifier.gradient((weight * entropies).sum(), affine)
    return total
