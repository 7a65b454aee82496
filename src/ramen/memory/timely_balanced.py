"""RoTTA's memory: category-balanced sampling with timeliness and uncertainty (CSTU).

Yuan et al., "Robust Test-Time Adaptation in Dynamic Scenarios", CVPR 2023. Every class has the same quota;
within it, old items and items that the model was uncertain about are replaced. Only labels, uncertainties,
ages and slot numbers are kept here, on the host, because each decision depends on the previous one.
"""

import math
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from ramen.memory.stream_memory import expect


class TimelyBalanced:
    """Pseudo-label, uncertainty and age of the items in ``capacity`` slots.

    Args:
        capacity: M, the most items.
        classes: C; the quota of a class is M / C, a fraction if C does not divide M.
        timeliness: Weight of an item's age in its score; the item with the largest score is replaced.
        uncertainty: Weight of its entropy, as a share of the largest possible entropy.
    """

    def __init__(
        self, capacity: int, classes: int, timeliness: float = 1.0, uncertainty: float = 1.0
    ) -> None:
        self.capacity, self.classes = capacity, classes
        self.timeliness, self.uncertainty = timeliness, uncertainty
        self._unit = uncertainty / (math.log(classes) or 1.0)  # with a single class the entropy is always 0
        self.labels: list[int] = []  # one per filled slot, like the other lists
        self.entropies: list[float] = []
        self.ages: list[int] = []  # how many items have been offered since, including itself

    def __len__(self) -> int:
        return len(self.labels)

    def insert(self, label: int, entropy: float) -> int | None:
        """Offer an item; return the slot that it takes, or None. All other items age by one."""
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
        return self.timeliness / (1 + math.exp(-age / self.capacity)) + self._unit * entropy

    def emptied(self) -> "TimelyBalanced":
        """The same memory before the first image."""
        return TimelyBalanced(self.capacity, self.classes, self.timeliness, self.uncertainty)

    def most_bytes(self) -> int:
        """The most that ``state`` takes."""
        return 24 * self.capacity

    def state(self) -> dict[str, Tensor]:
        """Labels, entropies and ages."""
        return {
            "labels": torch.tensor(self.labels, dtype=torch.int64, device="cpu"),
            "entropies": torch.tensor(self.entropies, dtype=torch.float64, device="cpu"),
            "ages": torch.tensor(self.ages, dtype=torch.int64, device="cpu"),
        }

    def restored(self, state: Mapping[str, Tensor], filled: int) -> "TimelyBalanced":
        """A memory like this one that continues from ``state``, with ``filled`` slots."""
        expect("labels", state["labels"], torch.int64, (filled,))
        expect("entropies", state["entropies"], torch.float64, (filled,))
        expect("ages", state["ages"], torch.int64, (filled,))
        memory = self.emptied()
        memory.labels, memory.ages = state["labels"].tolist(), state["ages"].tolist()
        memory.entropies = state["entropies"].tolist()
        if any(not 0 <= label < self.classes for label in memory.labels):
            raise ValueError(f"labels in the state must be between 0 and {self.classes - 1}")
        if any(age < 1 for age in memory.ages) or not all(map(math.isfinite, memory.entropies)):
            raise ValueError("ages in the state must be at least 1, and entropies finite")
        return memory
