"""The orders of streams in which images of the same class come close together."""

from dataclasses import dataclass

import numpy as np

from ramen.data.streams.orders import ROUNDING, Candidates, Order, join, protocol, shuffle, starts
from ramen.utils import checks
from ramen.utils.draws import Draws, IntArray

MOST_SLOTS = 100  # of RoTTA, however many classes there are
SLOT_IMAGES = 128  # of StatA: the batches that it counts
MOST_DRAWS = 1000  # until every slot has enough images


@dataclass(frozen=True)
class _Slots:
    """How the images of one stretch of the stream are spread over time slots."""

    delta: float
    count: int | str
    within: str
    balance: bool
    at_least: int

    def of(self, classes: int, images: int) -> int:
        """The number of slots."""
        if isinstance(self.count, int):
            return self.count
        return classes if self.count == "classes" else max(1, min(classes, images // SLOT_IMAGES))


@protocol("Labels come in clusters: each class is spread over time slots by Dirichlet proportions.")
def correlated(
    candidates: Candidates,
    draws: Draws,
    *,
    delta: float = 0.1,
    slots: int | str | None = None,
    within: str = "runs",
    balance: bool = False,
    at_least: int = 0,
    domains: str = "mixed",
    reset: bool = False,
) -> Order:
    """By default, the construction of RoTTA.

    For each class in ascending order, its ``n`` images are shuffled, proportions ``p`` over the slots are
    drawn from Dirichlet(delta, ..., delta), and slot ``t`` gets the images from
    ``floor(n * (p_1 + ... + p_(t-1)))`` up to ``floor(n * (p_1 + ... + p_t))``. Slots come one after the
    other and may be empty.

    The construction of NOTE, which ROID's benchmark uses too, is ``slots="classes", balance=True,
    at_least=10``. That of StatA is ``slots="batches", within="shuffled"``, with ``delta`` 0.1, 0.01 or 0.001.

    Args:
        candidates: The images to order.
        draws: Random numbers.
        delta: Concentration; the smaller it is, the fewer slots hold most of a class.
        slots: Number of slots; if None, one per class that occurs, at most 100. "classes": one per class that
            occurs. "batches": the same, but at most one per 128 images.
        within: The order within a slot: "runs" of one class each, the classes in random order, as published;
            or "shuffled". Only the latter approaches an uncorrelated stream for a large ``delta``.
        balance: Whether a slot gets no further class as soon as it has its share, the number of images
            divided by the number of slots. The proportions are then drawn over the other slots.
        at_least: Images that every slot must have; the slots are filled anew until they do.
        domains: "mixed": one construction over all images. "successive": one construction per domain, domain
            after domain.
        reset: Whether a method is reset before each domain; only for successive domains.
    """
    delta = checks.number("delta", delta, 0, exclusive=True)
    checks.choice("within", within, ("runs", "shuffled"))
    checks.flag("balance", balance)
    at_least = checks.integer("at_least", at_least, 0)
    if slots is None:
        slots = min(len(np.unique(candidates.label)), MOST_SLOTS)
    if isinstance(slots, str):
        checks.choice("slots", slots, ("classes", "batches"))
    else:
        slots = checks.integer("slots", slots, 1)
    rule = _Slots(delta, slots, within, balance, at_least)
    stretches = _stretches(candidates, domains, reset)
    parts = [_cluster(indices, candidates.label[indices], draws, rule) for indices in stretches]
    return Order(join(parts), resets=starts(parts) if reset else ())


@protocol("Class after class, all domains mixed or one after the other, no reset.")
def by_class(
    candidates: Candidates,
    draws: Draws,
    *,
    order: str = "random",
    domains: str = "mixed",
    reset: bool = False,
) -> Order:
    """The strongest correlation: all images of a class, shuffled, then all of the next.

    Args:
        candidates: The images to order.
        draws: Random numbers.
        order: The order of the classes, "random" or "ascending".
        domains: As for ``correlated``; each domain draws its own order of classes.
        reset: As for ``correlated``.
    """
    checks.choice("order", order, ("random", "ascending"))
    parts = []
    for indices in _stretches(candidates, domains, reset):
        labels = candidates.label[indices]
        classes = np.unique(labels) if order == "ascending" else shuffle(np.unique(labels), draws)
        parts.append(join([shuffle(indices[labels == label], draws) for label in classes]))
    return Order(join(parts), resets=starts(parts) if reset else ())


def _stretches(candidates: Candidates, domains: str, reset: bool) -> list[IntArray]:
    """The images of each stretch of the stream that is arranged by itself."""
    checks.choice("domains", domains, ("mixed", "successive"))
    if checks.flag("reset", reset) and domains == "mixed":
        raise ValueError('reset must be False if domains="mixed", got True')
    return [np.arange(len(candidates.domain))] if domains == "mixed" else list(candidates.by_domain())


def _cluster(indices: IntArray, labels: IntArray, draws: Draws, rule: _Slots) -> IntArray:
    contents = _enough_in_each(indices, labels, draws, rule)
    if rule.within == "shuffled":
        return join([shuffle(join(content), draws) for content in contents])
    return join([content[i] for content in contents for i in draws.permutation(len(content))])


def _enough_in_each(indices: IntArray, labels: IntArray, draws: Draws, rule: _Slots) -> list[list[IntArray]]:
    """Each slot's images of each class, drawn until every slot has enough of them."""
    slots = rule.of(len(np.unique(labels)), len(indices))
    if rule.at_least * slots > len(indices):
        raise ValueError(
            f"at_least must be at most {len(indices) // slots} for {len(indices):,} images in {slots} slots, "
            f"got {rule.at_least}"
        )
    for _ in range(MOST_DRAWS):
        contents = _fill(indices, labels, draws, rule, slots)
        if min(sum(map(len, content)) for content in contents) >= rule.at_least:
            return contents
    raise ValueError(
        f"at_least: in {MOST_DRAWS:,} draws, some of {slots} slots always had fewer than {rule.at_least} "
        f"images; lower it or slots, or raise delta={rule.delta:g}"
    )


def _fill(
    indices: IntArray, labels: IntArray, draws: Draws, rule: _Slots, slots: int
) -> list[list[IntArray]]:
    contents: list[list[IntArray]] = [[] for _ in range(slots)]
    sizes = np.zeros(slots, dtype=np.int64)
    for label in np.unique(labels):
        images = shuffle(indices[labels == label], draws)
        # Dirichlet proportions without some slots, divided by their sum, are Dirichlet over the others.
        receiving = sizes * slots < len(indices) if rule.balance else np.ones(slots, dtype=bool)
        shares = np.zeros(slots)
        shares[receiving] = draws.dirichlet(rule.delta, int(receiving.sum()))
        cuts = np.floor(np.cumsum(shares)[:-1] * len(images) + ROUNDING).astype(np.int64)
        for slot, run in enumerate(np.split(images, cuts)):
            contents[slot].append(run)
            sizes[slot] += len(run)
    return contents
