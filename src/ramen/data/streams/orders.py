"""The orders in which pictures come, one function for each protocol.

Everything is drawn from ``Draws``, so that the seed decides the order, on every machine.
"""

from collections.abc import Sequence

import numpy as np

from ramen.data.streams.protocols import Order, Pool, protocol
from ramen.utils import checks
from ramen.utils.random_draws import Draws, Real, Whole

# A count that is a whole number but for the last bit, such as 75 / 10 + 1/2 or all pictures times the sum of
# their proportions, is taken for that number: the last bit differs between machines.
ROUNDING = 1e-9


@protocol("All domains in one uniformly random order, no reset.")
def mixed(pool: Pool, draws: Draws) -> Order:
    """One permutation of all pictures."""
    return Order(draws.permutation(len(pool.domain)))


@protocol("Each domain by itself, shuffled; the method is reset before each.")
def single(pool: Pool, draws: Draws) -> Order:
    """A permutation of each domain, domain after domain."""
    parts = [_shuffled(places, draws) for places in pool.domains()]
    return Order(_joined(parts), resets=_starts(parts))


@protocol("Domain after domain, each shuffled, no reset.")
def continual(pool: Pool, draws: Draws, *, order: Sequence[str] | str | None = None) -> Order:
    """As ``single``, without resets.

    Args:
        pool: The pictures.
        draws: Random numbers.
        order: Names of all domains, "random", or None for the data set's order.
    """
    domains = _domain_order(pool, draws, order)
    return Order(_joined([_shuffled(places, draws) for places in pool.domains(domains)]))


@protocol(
    "Domain after domain, in each the severity rises and falls step by step, no reset.",
    exhaustive=False,
    severities=True,
)
def gradual(
    pool: Pool, draws: Draws, *, images: str = "repeated", order: Sequence[str] | str | None = None
) -> Order:
    """With severities 1 to 5, each domain goes through 1, 2, 3, 4, 5, 4, 3, 2, 1.

    Args:
        pool: The pictures.
        draws: Random numbers.
        images: "repeated": each step shows all of the domain's pictures, in an order of its own, as
            published. "disjoint": the domain's pictures are shuffled and cut into as many parts as there are
            steps, whose lengths differ by one at most; each picture comes once, at one severity.
        order: As for ``continual``.
    """
    checks.choice("images", images, ("repeated", "disjoint"))
    path = [*pool.severities, *reversed(pool.severities[:-1])]
    steps: list[Whole] = []
    for places in pool.domains(_domain_order(pool, draws, order)):
        if images == "repeated":
            steps += [_shuffled(places, draws) for _ in path]
        else:
            steps += np.array_split(_shuffled(places, draws), len(path))
    lengths = list(map(len, steps))
    severity = np.repeat(np.tile(np.array(path, dtype=np.int64), len(steps) // len(path)), lengths)
    return Order(_joined(steps), severity=severity)


@protocol("Labels come in clumps: each class is spread over time slots by Dirichlet proportions.")
def correlated(
    pool: Pool,
    draws: Draws,
    *,
    delta: float = 0.1,
    slots: int | None = None,
    within: str = "runs",
    domains: str = "mixed",
    reset: bool = False,
) -> Order:
    """The construction of RoTTA.

    For each class in rising number, its ``n`` pictures are shuffled, proportions ``p`` over the slots are
    drawn from Dirichlet(delta, ..., delta), and slot ``t`` gets those from
    ``floor(n * (p_1 + ... + p_(t-1)))`` up to ``floor(n * (p_1 + ... + p_t))``. Slots come one after the
    other and may be empty. (NOTE's code also gives nothing more to slots that are full and draws again until
    none is nearly empty; that is not done here.)

    Args:
        pool: The pictures.
        draws: Random numbers.
        delta: Concentration; the smaller, the fewer slots hold most of a class.
        slots: How many; None for one a class that occurs, 100 at most.
        within: What comes within a slot: "runs" of one class each, in random order of classes, as published;
            or all of it "shuffled", which alone tends to an uncorrelated stream for a large ``delta``.
        domains: "mixed": one construction over all pictures. "successive": one for each domain, domain after
            domain.
        reset: Whether a method is reset before each domain; for successive domains.
    """
    delta = checks.number("delta", delta, 0, exclusive=True)
    checks.choice("within", within, ("runs", "shuffled"))
    checks.choice("domains", domains, ("mixed", "successive"))
    if checks.flag("reset", reset) and domains == "mixed":
        raise ValueError('reset must be False where domains="mixed", got True')
    if slots is None:
        slots = min(len(np.unique(pool.label)), 100)
    checks.integer("slots", slots, 1)
    groups = [np.arange(len(pool.domain))] if domains == "mixed" else list(pool.domains())
    parts = [_in_slots(places, pool.label[places], draws, delta, slots, within) for places in groups]
    return Order(_joined(parts), resets=_starts(parts) if reset else ())


def _in_slots(places: Whole, labels: Whole, draws: Draws, delta: float, slots: int, within: str) -> Whole:
    contents: list[list[Whole]] = [[] for _ in range(slots)]
    for label in np.unique(labels):
        pictures = _shuffled(places[labels == label], draws)
        ends = np.cumsum(draws.dirichlet(delta, slots)) * len(pictures)
        cuts = np.floor(ends[:-1] + ROUNDING).astype(np.int64)
        for content, run in zip(contents, np.split(pictures, cuts), strict=True):
            content.append(run)
    if within == "shuffled":
        return _joined([_shuffled(_joined(content), draws) for content in contents])
    return _joined([content[i] for content in contents for i in draws.permutation(len(content))])


@protocol("Mixed domains that come in runs of geometric length.")
def bursty(pool: Pool, draws: Draws, *, length: float = 20.0) -> Order:
    """Runs of one domain; neighbouring runs are of different domains.

    The domain of each run is drawn among the others that have pictures left, with probability proportional to
    how many; its length is geometric from 1 on with mean ``length``, or what the domain has left if that is
    less. When a single domain is left over, the rest of it is one last run: short for domains of like
    size, long where one domain is larger than all others together.

    Args:
        pool: The pictures.
        draws: Random numbers.
        length: Mean number of pictures in a run.
    """
    length = checks.number("length", length, 1)
    waiting = [_shuffled(places, draws) for places in pool.domains()]
    left = [len(places) for places in waiting]
    total = sum(left)
    chances, lengths = draws.uniform(total).tolist(), draws.geometric(length, total).tolist()
    runs: list[Whole] = []
    current = -1
    while any(left):
        others = [n if i != current else 0 for i, n in enumerate(left)]
        alone = not any(others)
        if not alone:
            current = _drawn(others, chances[len(runs)])
        size = left[current] if alone else min(lengths[len(runs)], left[current])
        start = len(waiting[current]) - left[current]
        runs.append(waiting[current][start : start + size])
        left[current] -= size
    return Order(_joined(runs))


def _drawn(weights: Sequence[int], chance: float) -> int:
    """The number that a uniform ``chance`` picks with probability proportional to its weight."""
    target = chance * sum(weights)
    for number, weight in enumerate(weights):
        target -= weight
        if target < 0:
            return number
    return max(number for number, weight in enumerate(weights) if weight)  # rounding at the very end


@protocol(
    "A long-tailed part of the pictures, mixed: classes or domains of exponentially falling size.",
    exhaustive=False,
)
def imbalanced(pool: Pool, draws: Draws, *, ratio: float = 10.0, over: str = "classes") -> Order:
    """The groups that occur are ranked at random; the one at rank ``r`` of ``G`` keeps a random part.

    Its size is ``h * ratio ** (-r / (G - 1))``, rounded, one at least, where ``h`` is the largest number with
    which every group has as many. What is kept comes in one uniformly random order.

    Args:
        pool: The pictures.
        draws: Random numbers.
        ratio: The most frequent group's size by the least frequent's.
        over: "classes" or "domains".
    """
    ratio = checks.number("ratio", ratio, 1)
    checks.choice("over", over, ("classes", "domains"))
    group = pool.label if over == "classes" else pool.domain
    ranked = _shuffled(np.unique(group), draws)
    members = [_shuffled(np.flatnonzero(group == number), draws) for number in ranked]
    sizes = long_tail([len(m) for m in members], ratio)
    kept = [places[:size] for places, size in zip(members, sizes, strict=True)]
    return Order(_shuffled(_joined(kept), draws))


def long_tail(available: Sequence[int], ratio: float) -> list[int]:
    """How many of each group an exponential profile keeps; groups from the most to the least frequent.

    >>> long_tail([100, 100, 100], 100)
    [100, 10, 1]
    >>> long_tail([100, 5, 100], 100)
    [50, 5, 1]
    """
    profile: Real = float(ratio) ** (-np.arange(len(available)) / max(len(available) - 1, 1))
    head = (np.asarray(available) / profile).min()
    # the minimum picks the tightest group; rounding must not ask it for one picture more than it has
    halves_up = np.floor(head * profile + 0.5 + ROUNDING).astype(np.int64).tolist()
    return [max(1, min(size, n)) for size, n in zip(halves_up, available, strict=True)]


def _shuffled(places: Whole, draws: Draws) -> Whole:
    return places[draws.permutation(len(places))]


def _joined(parts: Sequence[Whole]) -> Whole:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _starts(parts: Sequence[Whole]) -> tuple[int, ...]:
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return (0, *ends[:-1]) if ends else ()


def _domain_order(pool: Pool, draws: Draws, order: Sequence[str] | str | None) -> list[int]:
    """Numbers of the domains in the order that the caller names."""
    if order is None:
        return list(range(len(pool.names)))
    if isinstance(order, str):
        checks.choice("order", order, ("random",))
        return list(draws.permutation(len(pool.names)).tolist())
    named = list(order)
    for name in named:
        if name not in pool.names:
            raise ValueError(f"order: there is no domain {name!r}{checks.nearest(str(name), pool.names)}")
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise ValueError(f"order must name each domain once, got {twice!r} {named.count(twice)} times")
    if missing := [name for name in pool.names if name not in named]:
        raise ValueError(f"order must name each domain once, {', '.join(missing)} missing")
    return [pool.names.index(name) for name in named]
