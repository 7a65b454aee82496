"""Which images of a stream a small memory keeps: NOTE's, RoTTA's and CLIPTTA's policies.

Only labels, scores and slot numbers are kept here, on the host, because each decision depends on the previous
one.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ramen.memory.base import expect, expect_at_least, expect_finite


class Reservoir:
    """Prediction-balanced reservoir sampling: labels in ``capacity`` slots, and how many of each were seen.

    Gong et al., "NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation", NeurIPS 2022.
    Over classes the memory stays as even as the predictions allow; within a class it is a uniform sample of
    all images so far.

    >>> reservoir = Reservoir(capacity=2, classes=3)
    >>> [reservoir.insert(0, (0.9, 0.0)) for _ in range(3)], reservoir.insert(1, (0.0, 0.5)), reservoir.labels
    ([0, 1, None], 1, [0, 1])
    """

    def __init__(self, capacity: int, classes: int) -> None:
        self.capacity = capacity
        self.labels: list[int] = []  # of the filled slots
        self.seen = [0] * classes

    def insert(self, label: int, draws: Sequence[float]) -> int | None:
        """The slot that an image takes, replacing its content; None if the image is dropped.

        Args:
            label: Its pseudo-label.
            draws: Two uniform numbers in [0, 1). The first decides which of the largest classes, in
                ascending order, gives up a slot, or whether the image replaces one of its own class. The
                second decides which of that class's slots, in ascending order.
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

    def emptied(self) -> "Reservoir":
        """The same reservoir before the first image."""
        return Reservoir(self.capacity, len(self.seen))

    def most_bytes(self) -> int:
        """The most that ``state`` takes."""
        return 8 * (self.capacity + len(self.seen))

    def state(self) -> dict[str, Tensor]:
        """Labels and counts."""
        columns = {"labels": self.labels, "seen": self.seen}
        return {n: torch.tensor(v, dtype=torch.int64, device="cpu") for n, v in columns.items()}

    def restored(self, state: Mapping[str, Tensor], filled: int) -> "Reservoir":
        """A reservoir like this one that continues from ``state``, with ``filled`` slots."""
        classes = len(self.seen)
        expect("labels", state["labels"], torch.int64, (filled,))
        expect("seen", state["seen"], torch.int64, (classes,))
        reservoir = self.emptied()
        reservoir.labels, reservoir.seen = state["labels"].tolist(), state["seen"].tolist()
        held = Counter(reservoir.labels)
        if any(not 0 <= label < classes for label in held):
            raise ValueError(f"labels in the state must be between 0 and {classes - 1}, got {sorted(held)}")
        if any(held[label] > count for label, count in enumerate(reservoir.seen)):
            raise ValueError("seen in the state must be at least the number of labels held of each class")
        return reservoir


class TimelyBalanced:
    """RoTTA's memory: category-balanced sampling with timeliness and uncertainty (CSTU).

    Yuan et al., "Robust Test-Time Adaptation in Dynamic Scenarios", CVPR 2023. Every class has the same
    quota; within it, old items and items that the model was uncertain about are replaced.

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


class MostConfident:
    """Labels and confidences of up to ``shots`` images of each class, by slot: CLIPTTA's memory.

    Lafon et al., "CLIPTTA: Robust Contrastive Vision-Language Test-Time Adaptation", NeurIPS 2025.

    >>> kept = MostConfident(shots=1, classes=2)
    >>> kept.insert(0, 0.5), kept.insert(1, 0.2), kept.insert(0, 0.4), kept.insert(0, 0.6), kept.labels
    (0, 1, None, 0, [0, 1])
    """

    def __init__(self, shots: int, classes: int) -> None:
        self.shots, self.classes = shots, classes
        self.labels: list[int] = []  # of the filled slots
        self.confidences: list[float] = []
        self._slots: list[list[int]] = [[] for _ in range(classes)]  # of each class, in ascending order

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

    def emptied(self) -> "MostConfident":
        """The same policy before the first image."""
        return MostConfident(self.shots, self.classes)

    def most_bytes(self) -> int:
        """The most that ``state`` takes."""
        return 16 * self.shots * self.classes

    def state(self) -> dict[str, Tensor]:
        """Labels and confidences."""
        return {
            "labels": torch.tensor(self.labels, dtype=torch.int64, device="cpu"),
            "confidences": torch.tensor(self.confidences, dtype=torch.float64, device="cpu"),
        }

    def restored(self, state: Mapping[str, Tensor], filled: int) -> "MostConfident":
        """A policy like this one that continues from ``state``, with ``filled`` slots."""
        expect("labels", state["labels"], torch.int64, (filled,))
        expect("confidences", state["confidences"], torch.float64, (filled,))
        expect_finite("confidences", state["confidences"])
        expect_at_least("confidences", state["confidences"], 0)
        other = self.emptied()
        other.labels, other.confidences = state["labels"].tolist(), state["confidences"].tolist()
        held = Counter(other.labels)
        if any(not 0 <= label < self.classes for label in held):
            raise ValueError(
                f"labels in the state must be between 0 and {self.classes - 1}, got {sorted(held)}"
            )
        if any(count > self.shots for count in held.values()):
            raise ValueError(f"labels in the state must hold at most {self.shots} images of each class")
        for slot, label in enumerate(other.labels):
            other._slots[label].append(slot)
        return other
