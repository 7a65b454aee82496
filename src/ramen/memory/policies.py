"""Which images of a stream a small memory keeps: NOTE's, RoTTA's and CLIPTTA's policies.

Only labels, scores and slot numbers are kept here, on the host, because each decision depends on the previous
one.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ramen.memory.base import expect, expect_at_least, expect_finite

_INTEGERS, _FLOATS = torch.int64, torch.float64


class SlotPolicy:
    """Decides which slot an image takes, from facts about it.

    Attributes:
        columns: The lists that are saved, by name; those that are empty at the start have an entry per slot.
        labels: Of the filled slots.
    """

    columns: ClassVar[dict[str, torch.dtype]]
    capacity: int
    classes: int
    labels: list[int]

    def insert(self, *facts: Any) -> int | None:
        """The slot that an image takes, whatever was in it; None if the image is dropped."""
        raise NotImplementedError

    def emptied(self) -> Self:
        """The same policy before the first image."""
        return replace(self)  # type: ignore[type-var]  # all of them are dataclasses

    def most_bytes(self) -> int:
        """The most that ``state`` takes."""
        empty = self.emptied()
        return 8 * sum(len(getattr(empty, name)) or self.capacity for name in self.columns)

    def state(self) -> dict[str, Tensor]:
        """What is known of the filled slots."""
        return {n: torch.tensor(getattr(self, n), dtype=t, device="cpu") for n, t in self.columns.items()}

    def restored(self, state: Mapping[str, Tensor], filled: int) -> Self:
        """The same policy, continuing from ``state`` with this many filled slots."""
        other = self.emptied()
        for name, dtype in self.columns.items():
            expect(name, state[name], dtype, (len(getattr(other, name)) or filled,))
            expect_finite(name, state[name])
            setattr(other, name, state[name].tolist())
        if any(not 0 <= label < self.classes for label in other.labels):
            raise ValueError(f"labels in the state must be between 0 and {self.classes - 1}")
        other.check_restored(state)
        return other

    def check_restored(self, state: Mapping[str, Tensor]) -> None:
        """Raise ValueError if what was restored contradicts itself."""


@dataclass
class Reservoir(SlotPolicy):
    """Prediction-balanced reservoir sampling: labels in ``capacity`` slots, and how many of each were seen.

    Gong et al., "NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation", NeurIPS 2022.
    Over classes the memory stays as even as the predictions allow; within a class it is a uniform sample of
    all images so far.

    >>> reservoir = Reservoir(capacity=2, classes=3)
    >>> [reservoir.insert(0, (0.9, 0.0)) for _ in range(3)], reservoir.insert(1, (0.0, 0.5)), reservoir.labels
    ([0, 1, None], 1, [0, 1])
    """

    columns: ClassVar = {"labels": _INTEGERS, "seen": _INTEGERS}

    capacity: int
    classes: int
    labels: list[int] = field(default_factory=list, init=False)
    seen: list[int] = field(init=False)  # of each class

    def __post_init__(self) -> None:
        self.seen = [0] * self.classes

    def insert(self, label: int, draws: Sequence[float]) -> int | None:
        """The slot that an image takes, replacing its content; None if the image is dropped.

        Of two uniform numbers in [0, 1), the first decides which of the largest classes, in ascending order,
        gives up a slot, or whether the image replaces one of its own class; the second, which of that class's
        slots, in ascending order.
        """
        self.seen[label] += 1
        if len(self.labels) < self.capacity:
            self.labels.append(label)
            return len(self.labels) - 1
        held = Counter(self.labels)
        most = max(held.values())
        largest = sorted(other for other, count in held.items() if count == most)
        if label not in largest:
            gives = largest[int(draws[0] * len(largest))]
        elif draws[0] < held[label] / self.seen[label]:
            gives = label
        else:
            return None
        slots = [slot for slot, other in enumerate(self.labels) if other == gives]
        slot = slots[int(draws[1] * len(slots))]
        self.labels[slot] = label
        return slot

    def check_restored(self, state: Mapping[str, Tensor]) -> None:
        held = Counter(self.labels)
        if any(held[label] > count for label, count in enumerate(self.seen)):
            raise ValueError("seen in the state must be at least the number of labels held of each class")


@dataclass
class TimelyBalanced(SlotPolicy):
    """RoTTA's memory: category-balanced sampling with timeliness and uncertainty (CSTU).

    Yuan et al., "Robust Test-Time Adaptation in Dynamic Scenarios", CVPR 2023. Every class has the same
    quota; within it, old items and items that the model was uncertain about are replaced.
    """

    columns: ClassVar = {"labels": _INTEGERS, "entropies": _FLOATS, "ages": _INTEGERS}

    capacity: int  # m, the most items
    classes: int  # c; the quota of a class is M / C, a fraction if C does not divide M
    # weight of an item's age in its score; the item with the largest score is replaced
    timeliness: float = 1.0
    uncertainty: float = 1.0  # weight of its entropy, as a share of the largest possible entropy
    labels: list[int] = field(default_factory=list, init=False)
    entropies: list[float] = field(default_factory=list, init=False)
    ages: list[int] = field(default_factory=list, init=False)  # how many have been offered since, with itself

    def __len__(self) -> int:
        return len(self.labels)

    def insert(self, label: int, entropy: float) -> int | None:
        slot = self._slot(label, entropy)
        if slot == len(self):
            self.labels.append(label)
            self.entropies.append(entropy)
            self.ages.append(0)
        elif slot is not None:
            self.labels[slot], self.entropies[slot], self.ages[slot] = label, entropy, 0
        self.ages = [age + 1 for age in self.ages]
        return slot

    def _slot(self, label: int, entropy: float) -> int | None:
        held = Counter(self.labels)
        if held[label] >= self.capacity / self.classes:
            give = {label}
        elif len(self) < self.capacity:
            return len(self)
        else:
            most = max(held.values())
            give = {other for other, count in held.items() if count == most}
        # Ties go to the last one in the order of classes and, within a class, of arrival.
        items = zip(self.labels, self.entropies, self.ages, strict=True)
        score, _, _, worst = max(
            (self._score(age, unsure), other, -age, slot)
            for slot, (other, unsure, age) in enumerate(items)
            if other in give
        )
        return worst if score > self._score(0, entropy) else None

    def _score(self, age: int, entropy: float) -> float:
        largest = math.log(self.classes) or 1.0  # with a single class the entropy is always 0
        return self.timeliness / (1 + math.exp(-age / self.capacity)) + self.uncertainty / largest * entropy

    def check_restored(self, state: Mapping[str, Tensor]) -> None:
        expect_at_least("ages", state["ages"], 1)


@dataclass
class MostConfident(SlotPolicy):
    """Labels and confidences of up to ``shots`` images of each class, by slot: CLIPTTA's memory.

    Lafon et al., "CLIPTTA: Robust Contrastive Vision-Language Test-Time Adaptation", NeurIPS 2025.

    >>> kept = MostConfident(shots=1, classes=2)
    >>> kept.insert(0, 0.5), kept.insert(1, 0.2), kept.insert(0, 0.4), kept.insert(0, 0.6), kept.labels
    (0, 1, None, 0, [0, 1])
    """

    columns: ClassVar = {"labels": _INTEGERS, "confidences": _FLOATS}

    shots: int
    classes: int
    labels: list[int] = field(default_factory=list, init=False)
    confidences: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.capacity = self.shots * self.classes
        self._slots: list[list[int]] = [[] for _ in range(self.classes)]  # of each class, in ascending order

    def insert(self, label: int, confidence: float) -> int | None:
        """The slot that an image takes: a new one, or that of the least confident of its class if surer."""
        own = self._slots[label]
        if len(own) < self.shots:
            self.labels.append(label)
            self.confidences.append(confidence)
            own.append(len(self.labels) - 1)
            return own[-1]
        least = min(own, key=self.confidences.__getitem__)
        if confidence <= self.confidences[least]:
            return None
        self.confidences[least] = confidence
        return least

    def sample(self, per_class: int, draws: Sequence[float]) -> list[int]:
        """The slots of up to ``per_class`` images of each class at random: those with the smallest draws.

        ``draws`` has one number per slot; the result is in ascending order.
        """
        chosen = (sorted(own, key=draws.__getitem__)[:per_class] for own in self._slots)
        return sorted(slot for slots in chosen for slot in slots)

    def check_restored(self, state: Mapping[str, Tensor]) -> None:
        expect_at_least("confidences", state["confidences"], 0)
        for slot, label in enumerate(self.labels):
            self._slots[label].append(slot)
        if any(len(own) > self.shots for own in self._slots):
            raise ValueError(f"labels in the state must hold at most {self.shots} images of each class")
