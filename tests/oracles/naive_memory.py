"""The memory as plainly as it can be written: lists, one entry at a time, double loops. The tests' oracle."""

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Entry:
    number: int
    embedding: np.ndarray
    gradient: np.ndarray
    entropy: float
    tag: int
    age: np.float16 = field(default_factory=lambda: np.float16(0))


class NaiveMemory:
    def __init__(self, queues: int, capacity: int, fifo: str = "exact") -> None:
        self.capacity = capacity
        self.fifo = fifo
        self.queues: list[list[Entry]] = [[] for _ in range(queues)]

    def insert_one(self, queue: int, entry: Entry) -> None:
        entries = self.queues[queue]
        with np.errstate(over="ignore"):
            entry.age = np.float16(entry.number)
        if len(entries) < self.capacity:
            entries.append(entry)
        elif self.fifo == "exact":
            entries.pop(0)
            entries.append(entry)
        else:
            oldest = min(range(self.capacity), key=lambda i: entries[i].age)  # the first of equals
            if entry.age > entries[oldest].age:
                entries[oldest] = entry

    def select(self, query: np.ndarray, topk: int) -> list[tuple[int, Entry, float]]:
        """(queue, entry, distance) of the support set."""
        chosen = []
        for index, entries in enumerate(self.queues):
            ranked = sorted(entries, key=lambda e: -float(query @ e.embedding))
            for entry in ranked[:topk]:
                distance = math.sqrt(sum((a - b) ** 2 for a, b in zip(query, entry.embedding, strict=True)))
                chosen.append((index, entry, distance))
        return chosen


def weight(entry: Entry, distance: float, beta: float) -> float:
    return math.exp(-entry.entropy) * math.exp(-beta * distance)


def aggregate(chosen: list[tuple[int, Entry, float]], beta: float, size: int) -> np.ndarray:
    total = np.zeros(size)
    for _, entry, distance in chosen:
        for g in range(size):
            total[g] += weight(entry, distance, beta) * float(entry.gradient[g])
    return total
