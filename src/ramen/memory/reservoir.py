"""Prediction-balanced reservoir sampling: which images of a stream a small memory keeps.

Gong et al., "NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation", NeurIPS 2022. Over
classes the memory stays as even as the predictions allow; within a class it is a uniform sample of all images
so far. Only labels and slot numbers are kept here, on the host, because each decision depends on the previous
one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ramen.memory.stream_memory import expect


class Reservoir:
    """Pseudo-labels in ``capacity`` slots, and how many images of each class have been seen.

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
