"""The orders of streams: what a protocol is, one function per protocol, and the names that others use.

A protocol puts candidate images into an order. Those that depend on labels are in ``label_orders``. All
random numbers come from ``Draws``, so that the seed determines the order on every machine.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from ramen.utils import checks
from ramen.utils.draws import Draws, FloatArray, IntArray


@dataclass(frozen=True)
class Alias:
    """A name that stands for a protocol with some of its parameters set."""

    protocol: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.protocol, *(f"{name}={value}" for name, value in self.parameters.items())])


# NOTE's construction of correlated labels, as in ROID's benchmark; and that of StatA
_NOTE = {"slots": "classes", "balance": True, "at_least": 10}
_STATA = {"slots": "batches", "within": "shuffled"}

ALIASES: Mapping[str, Alias] = MappingProxyType(
    {
        # the settings of ROID's benchmark
        "mixed_domains": Alias("mixed"),
        "reset_each_shift": Alias("single"),
        "mixed_domains_correlated": Alias("correlated", _NOTE),
        "mixed_correlated": Alias("correlated", _NOTE),
        "note": Alias("correlated", {**_NOTE, "domains": "successive"}),
        "class_sorted": Alias("by_class", {"order": "ascending"}),  # if it is given no delta
        # MoETTA's, with data sets that a manifest makes one
        "potpourri": Alias("mixed"),
        # CoTTA's
        "continual_rounds": Alias("cyclic", {"images": "repeated"}),
        # RoTTA's
        "dirichlet": Alias("correlated"),
        "non_iid": Alias("correlated"),
        "practical": Alias("correlated", {"domains": "successive"}),
        # StatA's
        "stata_low": Alias("correlated", {**_STATA, "delta": 0.1}),
        "stata_medium": Alias("correlated", {**_STATA, "delta": 0.01}),
        "stata_high": Alias("correlated", {**_STATA, "delta": 0.001}),
        "stata_separate": Alias("by_class"),
    }
)


@dataclass(frozen=True)
class Candidates:
    """The images that a stream may use, domain after domain; the arrays have one entry per image."""

    domain_names: tuple[str, ...]
    domain: IntArray
    label: IntArray
    severities: tuple[int, ...] = ()  # ascending, if each image exists at several severities

    def by_domain(self, order: Iterable[int] | None = None) -> Iterator[IntArray]:
        """The indices of each domain's candidates; skips domains without any."""
        for number in range(len(self.domain_names)) if order is None else order:
            indices = np.flatnonzero(self.domain == number)
            if len(indices):
                yield indices


@dataclass(frozen=True)
class Order:
    """The order that a protocol chose."""

    indices: IntArray  # into the candidates
    resets: tuple[int, ...] = ()  # positions in the stream before which a method is reset
    severity: IntArray | None = None  # per image, if the candidates have several
    rounds: tuple[int, ...] = ()  # positions at which the domains begin again, if they do


@dataclass(frozen=True)
class Protocol:
    """What is known about a protocol."""

    name: str
    description: str
    arrange: Callable[..., Order]
    parameters: Mapping[str, Any]  # its own parameters with their defaults
    exhaustive: bool  # whether every candidate comes exactly once, whatever the parameters
    severities: bool = False  # whether it needs one data set per severity

    def __str__(self) -> str:
        listed = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items()) or "none"
        return f"{self.name}: {self.description}\n  parameters: {listed}"


PROTOCOLS: dict[str, Protocol] = {}


def protocol(description: str, **facts: bool) -> Callable[[Callable[..., Order]], Callable[..., Order]]:
    """Decorator that registers a protocol under the name of the function."""

    def register(arrange: Callable[..., Order]) -> Callable[..., Order]:
        own = list(inspect.signature(arrange).parameters.values())[2:]  # after candidates and draws
        name = arrange.__name__
        PROTOCOLS[name] = Protocol(
            name, description, arrange, {p.name: p.default for p in own}, **({"exhaustive": True} | facts)
        )
        return arrange

    return register


def find_protocol(name: str) -> Protocol:
    """The protocol of that name, or that the alias stands for."""
    return resolve_protocol(name, {})[0]


def resolve_protocol(name: str, parameters: Mapping[str, Any]) -> tuple[Protocol, dict[str, Any]]:
    """The protocol that a name or an alias stands for, and its parameters: the given ones override an alias.

    >>> found, parameters = resolve_protocol("stata_high", {"slots": 20})
    >>> found.name, parameters
    ('correlated', {'slots': 20, 'within': 'shuffled', 'delta': 0.001})
    """
    alias = ALIASES.get(name)
    if alias is not None:
        return PROTOCOLS[alias.protocol], {**alias.parameters, **parameters}
    if name not in PROTOCOLS:
        raise ValueError(f"there is no protocol {name!r}{checks.nearest(str(name), [*PROTOCOLS, *ALIASES])}")
    return PROTOCOLS[name], dict(parameters)


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


_IMAGES = ("repeated", "disjoint")  # whether an image comes again


@protocol("All domains in one uniformly random order, no reset.")
def mixed(candidates: Candidates, draws: Draws) -> Order:
    """One permutation of all images."""
    return Order(draws.permutation(len(candidates.domain)))


@protocol("Each domain by itself, shuffled; the method is reset before each.")
def single(candidates: Candidates, draws: Draws) -> Order:
    """A permutation of each domain, domain after domain."""
    parts = [shuffle(indices, draws) for indices in candidates.by_domain()]
    return Order(join(parts), resets=starts(parts))


@protocol("Domain after domain, each shuffled, no reset.")
def continual(candidates: Candidates, draws: Draws, *, order: Sequence[str] | str | None = None) -> Order:
    """Like ``single``, but without resets.

    Args:
        candidates: The images to order.
        draws: Random numbers.
        order: Names of all domains, "random", or None for the order of the data set.
    """
    domains = domain_order(candidates, draws, order)
    return Order(join([shuffle(indices, draws) for indices in candidates.by_domain(domains)]))


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
    checks.choice("images", images, _IMAGES)
    path = [*candidates.severities, *reversed(candidates.severities[:-1])]
    steps: list[IntArray] = []
    for indices in candidates.by_domain(domain_order(candidates, draws, order)):
        if images == "repeated":
            steps += [shuffle(indices, draws) for _ in path]
        else:
            steps += np.array_split(shuffle(indices, draws), len(path))
    lengths = list(map(len, steps))
    severity = np.repeat(np.tile(np.array(path, dtype=np.int64), len(steps) // len(path)), lengths)
    return Order(join(steps), severity=severity)


@protocol("Domain after domain, round after round, no reset.", exhaustive=False)
def cyclic(
    candidates: Candidates,
    draws: Draws,
    *,
    rounds: int = 10,
    images: str = "disjoint",
    order: Sequence[str] | str | None = None,
    reorder: bool = False,
) -> Order:
    """Like ``continual``, but the domains come again: a method must neither forget nor wear out.

    Args:
        candidates: The images to order.
        draws: Random numbers.
        rounds: How often each domain comes.
        images: "disjoint": the images of each domain are shuffled and cut into one part per round, whose
            lengths differ by at most one; each image comes once. "repeated": each round shows all images of
            each domain, in an order of its own, as CoTTA's.
        order: As for ``continual``.
        reorder: Whether each round draws an order of domains of its own; only if ``order`` is "random".
    """
    rounds = checks.integer("rounds", rounds, 1)
    checks.choice("images", images, _IMAGES)
    if checks.flag("reorder", reorder) and order != "random":
        raise ValueError(f'reorder must be False unless order="random", got True with order={order!r}')
    domains = domain_order(candidates, draws, order)
    whole = [np.flatnonzero(candidates.domain == number) for number in range(len(domains))]
    cut = [np.array_split(shuffle(indices, draws), rounds) for indices in whole if images == "disjoint"]
    parts: list[IntArray] = []
    for round_number in range(rounds):
        if reorder and round_number:
            domains = domain_order(candidates, draws, order)
        shown = [cut[n][round_number] if cut else shuffle(whole[n], draws) for n in domains]
        parts.append(join(shown))
    return Order(join(parts), rounds=starts(parts))


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
    waiting = [shuffle(indices, draws) for indices in candidates.by_domain()]
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
    return Order(join(runs))


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
    ranked = shuffle(np.unique(group), draws)
    members = [shuffle(np.flatnonzero(group == number), draws) for number in ranked]
    sizes = long_tail([len(m) for m in members], ratio)
    kept = [indices[:size] for indices, size in zip(members, sizes, strict=True)]
    return Order(shuffle(join(kept), draws))


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
