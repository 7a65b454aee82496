"""The most confident images of each predicted class: which images of a stream CLIPTTA's memory keeps.

Lafon et al., "CLIPTTA: Robust Contrastive Vision-Language Test-Time Adaptation", NeurIPS 2025. Only labels,
confidences and slot numbers are kept here, on the host.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ramen.memory.stream_memory import expect, expect_at_least, expect_finite


class MostConfident:
    """Labels and confidences of up to ``shots`` images of each class, by slot.

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
