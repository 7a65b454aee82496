"""The orders of streams, one function per protocol.

All random numbers come from ``Draws``, so that the seed determines the order on every machine.
"""

from collections.abc import Sequence

import numpy as np

from ramen.data.streams.protocols import Candidates, Order, protocol
from ramen.utils import checks
from ramen.utils.random_draws import Draws, FloatArray, IntArray

# A count that differs from a whole number only in the last bit, such as 75 / 10 + 1/2 or the number of images
# times the sum of their proportions, counts as that number: the last bit differs between machines.
ROUNDING = 1e-9


@protocol("All domains in one uniformly random order, no reset.")
def mixed(candidates: Candidates, draws: Draws) -> Order:
    """One permutation of all images."""
    return Order(draws.permutation(len(candidates.domain)))


@protocol("Each domain by itself, shuffled; the method is reset before each.")
def single(candidates: Candidates, draws: Draws) -> Order:
    """A permutation of each domain, domain after domain."""
    parts = [_shuffle(indices, draws) for indices in candidates.by_domain()]
    return Order(_join(parts), resets=_starts(parts))


@protocol("Domain after domain, each shuffled, no reset.")
def continual(candidates: Candidates, draws: Draws, *, order: Sequence[str] | str | None = None) -> Order:
    """Like ``single``, but without resets.

    Args:
        candidates: The images to order.
        draws: Random numbers.
        order: Names of all domains, "random", or None for the order of the data set.
    """
    domains = _domain_order(candidates, draws, order)
    return Order(_join([_shuffle(indices, draws) for indices in candidates.by_domain(domains)]))


@protocol(
    "Domain after domain, in each of them the severity rises and falls step by step, no reset.",
    exhaustive=False,
    severities=True,
)
def gradual(
    candidates: Candidates,
    draws: Draws,
    *,
    images: str = "repeated",
    order: Sequence[str] | str | None = None,
) -> Order:
    """With severities 1 to 5, each domain goes through 1, 2, 3, 4, 5, 4, 3, 2, 1.

    Args:
        candidates: The images to order.
        draws: Random numbers.
        images: "repeated": each step shows all images of the domain, in an order of its own, as published.
            "disjoint": the images of the domain are shuffled and cut into one part per step, whose lengths
            differ by at most one; each image comes once, at one severity.
        order: As for ``continual``.
    """
    checks.choice("images", images, ("repeated", "disjoint"))
    path = [*candidates.severities, *reversed(candidates.severities[:-1])]
    steps: list[IntArray] = []
    for indices in candidates.by_domain(_domain_order(candidates, draws, order)):
        if images == "repeated":
            steps += [_shuffle(indices, draws) for _ in path]
        else:
            steps += np.array_split(_shuffle(indices, draws), len(path))
    lengths = list(map(len, steps))
    severity = np.repeat(np.tile(np.array(path, dtype=np.int64), len(steps) // len(path)), lengths)
    return Order(_join(steps), severity=severity)


@protocol("Labels come in clusters: each class is spread over time slots by Dirichlet proportions.")
def correlated(
    candidates: Candidates,
    draws: Draws,
    *,
    delta: float = 0.1,
    slots: int | None = None,
    within: str = "runs",
    domains: str = "mixed",
    reset: bool = False,
) -> Order:
    """The construction of RoTTA.

    For each class in ascending order, its ``n`` images are shuffled, proportions ``p`` over the slots are
    drawn from Dirichlet(delta, ..., delta), and slot ``t`` gets the images from
    ``floor(n * (p_1 + ... + p_(t-1)))`` up to ``floor(n * (p_1 + ... + p_t))``. Slots come one after the
    other and may be empty. (The code of NOTE also adds nothing to slots that are full, and draws again until
    no slot is nearly empty; that is not done here.)

    Args:
        candidates: The images to order.
        draws: Random numbers.
        delta: Concentration; the smaller it is, the fewer slots hold most of a class.
        slots: Number of slots; if None, one per class that occurs, at most 100.
        within: The order within a slot: "runs" of one class each, the classes in random order, as published;
            or "shuffled". Only the latter approaches an uncorrelated stream for a large ``delta``.
        domains: "mixed": one construction over all images. "successive": one construction per domain, domain
            after domain.
        reset: Whether a method is reset before each domain; only for successive domains.
    """
    delta = checks.number("delta", delta, 0, exclusive=True)
    checks.choice("within", within, ("runs", "shuffled"))
    checks.choice("domains", domains, ("mixed", "successive"))
    if checks.flag("reset", reset) and domains == "mixed":
        raise ValueError('reset must be False if domains="mixed", got True')
    if slots is None:
        slots = min(len(np.unique(candidates.label)), 100)
    checks.integer("slots", slots, 1)
    groups = [np.arange(len(candidates.domain))] if domains == "mixed" else list(candidates.by_domain())
    parts = [
        _fill_slots(indices, candidates.label[indices], draws, delta, slots, within) for indices in groups
    ]
    return Order(_join(parts), resets=_starts(parts) if reset else ())


def _fill_slots(
    indices: IntArray, labels: IntArray, draws: Draws, delta: float, slots: int, within: str
) -> IntArray:
    contents: list[list[IntArray]] = [[] for _ in range(slots)]
    for label in np.unique(labels):
        images = _shuffle(indices[labels == label], draws)
        ends = np.cumsum(draws.dirichlet(delta, slots)) * len(images)
        cuts = np.floor(ends[:-1] + ROUNDING).astype(np.int64)
        for content, run in zip(contents, np.split(images, cuts), strict=True):
            content.append(run)
    if within == "shuffled":
        return _join([_shuffle(_join(content), draws) for content in contents])
    return _join([content[i] for content in contents for i in draws.permutation(len(content))])


@protocol("Mixed domains in runs of geometric length.")
def bursty(candidates: Candidates, draws: Draws, *, length: float = 20.0) -> Order:
    """Runs of one domain; neighbouring runs are of different domains.

    The domain of each run is drawn among the other domains that have images left, with a probability
    proportional to how many they have. The length of a run is geometric, at least 1, with mean ``length``, or
    what the domain has left if that is less. When only one domain is left, its remaining images are one last
    run: short if the domains have similar sizes, long if one is larger than all others together.

    Args:
        candidates: The images to order.
        draws: Random numbers.
        length: Mean number of images in a run.
    """
    length = checks.number("length", length, 1)
    waiting = [_shuffle(indices, draws) for indices in candidates.by_domain()]
    left = [len(indices) for indices in waiting]
    total = sum(left)
    chances, lengths = draws.uniform(total).tolist(), draws.geometric(length, total).tolist()
    runs: list[IntArray] = []
    current = -1
    while any(left):
        others = [n if i != current else 0 for i, n in enumerate(left)]
        only_one_left = not any(others)
        if not only_one_left:
            current = _pick(others, chances[len(runs)])
        size = left[current] if only_one_left else min(lengths[len(runs)], left[current])
        start = len(waiting[current]) - left[current]
        runs.append(waiting[current][start : start + size])
        left[current] -= size
    return Order(_join(runs))


def _pick(weights: Sequence[int], chance: float) -> int:
    """The position that a uniform ``chance`` picks, with a probability proportional to its weight."""
    target = chance * sum(weights)
    for position, weight in enumerate(weights):
        target -= weight
        if target < 0:
            return position
    return max(position for position, weight in enumerate(weights) if weight)  # after a rounding error


@protocol(
    "A long-tailed subset of the images, mixed: the sizes of classes or domains fall exponentially.",
    exhaustive=False,
)
def imbalanced(candidates: Candidates, draws: Draws, *, ratio: float = 10.0, over: str = "classes") -> Order:
    """The groups that occur are ranked at random; each keeps a random subset of its images.

    The group at rank ``r`` of ``G`` keeps ``h * ratio ** (-r / (G - 1))`` images, rounded, at least one, with
    the largest ``h`` for which every group has enough. The images that are kept come in one uniformly random
    order.

    Args:
        candidates: The images to order.
        draws: Random numbers.
        ratio: The size of the most frequent group divided by that of the least frequent.
        over: Whether the groups are "classes" or "domains".
    """
    ratio = checks.number("ratio", ratio, 1)
    checks.choice("over", over, ("classes", "domains"))
    group = candidates.label if over == "classes" else candidates.domain
    ranked = _shuffle(np.unique(group), draws)
    members = [_shuffle(np.flatnonzero(group == number), draws) for number in ranked]
    sizes = long_tail([len(m) for m in members], ratio)
    kept = [indices[:size] for indices, size in zip(members, sizes, strict=True)]
    return Order(_shuffle(_join(kept), draws))


def long_tail(available: Sequence[int], ratio: float) -> list[int]:
    """How many images of each group an exponential profile keeps, from the most to the least frequent group.

    >>> long_tail([100, 100, 100], 100)
    [100, 10, 1]
    >>> long_tail([100, 5, 100], 100)
    [50, 5, 1]
    """
    profile: FloatArray = float(ratio) ** (-np.arange(len(available)) / max(len(available) - 1, 1))
    head = (np.asarray(available) / profile).min()
    # The minimum selects the tightest group; rounding must not request one image more than it has.
    rounded = np.floor(head * profile + 0.5 + ROUNDING).astype(np.int64).tolist()
    return [max(1, min(size, n)) for size, n in zip(rounded, available, strict=True)]


def _shuffle(indices: IntArray, draws: Draws) -> IntArray:
    return indices[draws.permutation(len(indices))]


def _join(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _starts(parts: Sequence[IntArray]) -> tuple[int, ...]:
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return (0, *ends[:-1]) if ends else ()


def _domain_order(candidates: Candidates, draws: Draws, order: Sequence[str] | str | None) -> list[int]:
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
