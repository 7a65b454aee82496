"""What Ramen chooses for the classes and the memory that it is given.

The paper's memories hold about 75,000 images, whatever the number of classes, and so do these. It retrieves
about 500 of them; fewer did better wherever we measured, since the most similar images are those of the
query's own domain.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ramen.memory.plan import MemoryPlan
from ramen.methods._registry import AUTO
from ramen.utils import checks
from ramen.utils.checks import readable_bytes

MEMORY_IMAGES = 75_000  # in all classes together
_PAPER_RETRIEVED = 500  # likewise
# What differs from the rule, by the number of classes.
_PUBLISHED: dict[int, dict[str, float]] = {345: {"capacity": 300, "topk": 10}, 1000: {"beta": 0.0}}


def capacity_for(classes: int) -> int:
    """The most entries per class.

    >>> [capacity_for(classes) for classes in (1, 10, 100, 1000, 100_000)]
    [75000, 7500, 750, 75, 1]
    """
    return max(1, round(MEMORY_IMAGES / classes))


def topk_for(classes: int) -> int:
    """How many images to retrieve per class: about 60 in all, at least 3 per class up to 1,000 in all.

    >>> [topk_for(classes) for classes in (1, 2, 3, 10, 24, 100, 1000, 100_000)]
    [60, 30, 20, 6, 3, 3, 1, 1]
    """
    return max(round(60 / classes), min(3, 1000 // classes), 1)


def paper_values(classes: int) -> dict[str, Any]:
    """The parameters with which the method "ramen" is the paper's, step for step, for so many classes.

    For 10, 100, 345 and 1,000 classes they are those of CIFAR-10-C, CIFAR-100-C, DomainNet and ImageNet-C;
    for other numbers, memories of 75,000 images in all and supports of 500, and beta 5.

    >>> paper_values(345)["capacity"], paper_values(345)["topk"]
    (300, 10)
    >>> ramen.create("ramen", clf, **ramen.paper_values(clf.num_classes))  # doctest: +SKIP
    """
    checks.integer("classes", classes, 1)
    capacity = capacity_for(classes)
    found: dict[str, Any] = {
        "capacity": capacity,
        "topk": min(capacity, max(1, round(_PAPER_RETRIEVED / classes))),
        "beta": 5.0,
        **_PUBLISHED.get(classes, {}),
    }
    form = {"gradients": "raw", "certainty": "entropy", "step_form": "equal"}
    return {**found, "lr": 1e-2, "guard": 0.0, **form}


def choose_memory(
    plan_for: Callable[[int, str], MemoryPlan],
    classes: int,
    capacity: int | str,
    topk: int | str,
    codec: str,
    budget: int | None,
) -> tuple[int, int, str, Mapping[str, str]]:
    """Capacity, topk and codec in place of those that are "auto".

    Args:
        plan_for: The memory of that capacity and codec.
        classes: How many there are.
        capacity: Given, or "auto": lowered if no codec fits otherwise.
        topk: Given, or "auto".
        codec: Given, or "auto".
        budget: The most bytes that the full memory may take; see ``MemoryPlan.within``.

    Returns:
        The three, and why for those that were "auto".
    """
    why = {}
    size = f"{classes:,} {'class' if classes == 1 else 'classes'}"
    if isinstance(capacity, str):
        least = 1 if isinstance(topk, str) else topk
        wanted = max(least, capacity_for(classes))
        plan = plan_for(wanted, codec)
        per_entry = plan.capacity // wanted  # how many classes share a queue
        fitting = plan.within(budget, least * per_entry)
        capacity, lowered = fitting.capacity // per_entry, fitting.capacity < plan.capacity
        codec_found = fitting.codec
        what = f"the most that fits with codec {codec_found!r}" if lowered else f"{MEMORY_IMAGES:,} images"
        why["capacity"] = f"{what}, for {size}"
    else:
        codec_found = plan_for(capacity, codec).within(budget).codec
    if codec == AUTO:
        full = readable_bytes(sum(plan_for(capacity, codec_found).max_bytes().values()))
        why["codec"] = f"the most exact up to fp16 that fits; the full memory takes {full}"
    if isinstance(topk, str):
        topk = min(topk_for(classes), capacity)
        why["topk"] = f"{topk * classes:,} images in all, for {size}"
    return capacity, topk, codec_found, why
