"""Memories of whole images as their papers draw them: one list for each class, scanned from front to back."""

import math


class BalancedLists:
    """NOTE's reservoir. An item is the slot that it takes.

    Attributes:
        counts: How many images of each class have come.
    """

    def __init__(self, capacity: int, classes: int) -> None:
        self.capacity = capacity
        self.lists: list[list[int]] = [[] for _ in range(classes)]
        self.counts = [0] * classes

    def insert(self, label: int, draws: tuple[float, float]) -> int | None:
        """The slot that an image takes, if any."""
        self.counts[label] += 1
        held = sum(len(items) for items in self.lists)
        if held < self.capacity:
            self.lists[label].append(held)
            return held
        longest = max(len(items) for items in self.lists)
        victims = [c for c, items in enumerate(self.lists) if len(items) == longest]
        if label in victims:
            if draws[0] >= len(self.lists[label]) / self.counts[label]:
                return None
            victim = label
        else:
            victim = victims[int(draws[0] * len(victims))]
        items = sorted(self.lists[victim])
        slot = items[int(draws[1] * len(items))]
        self.lists[victim].remove(slot)
        self.lists[label].append(slot)
        return slot


class TimelyLists:
    """RoTTA's category-balanced sampling with timeliness and uncertainty."""

    def __init__(self, capacity: int, classes: int) -> None:
        self.capacity = capacity
        self.lists: list[list[dict]] = [[] for _ in range(classes)]

    def items(self) -> list[dict]:
        """All of them, by their slots, with age, entropy and label."""
        found = [item | {"label": label} for label, items in enumerate(self.lists) for item in items]
        return sorted(found, key=lambda item: item["slot"])

    def score(self, age: int, entropy: float) -> float:
        return 1 / (1 + math.exp(-age / self.capacity)) + entropy / math.log(len(self.lists))

    def insert(self, label: int, entropy: float) -> int | None:
        """The slot that an image takes, if any."""
        total = sum(map(len, self.lists))
        if len(self.lists[label]) >= self.capacity / len(self.lists):
            slot = self._evict([label], entropy)
        elif total < self.capacity:
            slot = total
        else:
            longest = max(map(len, self.lists))
            slot = self._evict([c for c, items in enumerate(self.lists) if len(items) == longest], entropy)
        if slot is not None:
            self.lists[label].append({"slot": slot, "age": 0, "entropy": entropy})
        for item in (item for items in self.lists for item in items):
            item["age"] += 1
        return slot

    def _evict(self, classes: list[int], entropy: float) -> int | None:
        worst, where = -1.0, (0, 0)
        for c in classes:
            for position, item in enumerate(self.lists[c]):
                if self.score(item["age"], item["entropy"]) >= worst:
                    worst, where = self.score(item["age"], item["entropy"]), (c, position)
        return self.lists[where[0]].pop(where[1])["slot"] if worst > self.score(0, entropy) else None
