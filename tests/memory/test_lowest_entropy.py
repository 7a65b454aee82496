"""The memory of the most confident images against lists that take one image at a time."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramen.memory.lowest_entropy import Arrivals, LowestEntropyMemory
from ramen.memory.rows import ColumnSpec

CPU = torch.device("cpu")


def memory(classes: int, capacity: int, width: int = 3) -> LowestEntropyMemory:
    columns = {"embeddings": ColumnSpec(torch.float64, CPU, width), "numbers": ColumnSpec(torch.int64, CPU)}
    return LowestEntropyMemory(classes, capacity, columns)


def sorted_list(entries: list[tuple[float, int]], entropy: float, number: int, capacity: int) -> None:
    """TDA's rule for one class: append or replace the last, then sort by entropy alone."""
    if len(entries) < capacity:
        entries.append((entropy, number))
    elif entropy < entries[-1][0]:
        entries[-1] = (entropy, number)
    entries.sort(key=lambda entry: entry[0])


def slots(entries: list[tuple[float, int]], entropy: float, number: int, capacity: int) -> None:
    """DMN's rule for one class: the next free slot, or that of the largest entropy if it exceeds the new."""
    if len(entries) < capacity:
        entries.append((entropy, number))
    elif any(stored > entropy for stored, _ in entries):
        entries[max(range(capacity), key=lambda slot: entries[slot])] = (entropy, number)


def found(memory: LowestEntropyMemory, batch: Arrivals, first: int) -> list[list[set[int]]]:
    """For each image and class, the numbers of the entries that it sees."""
    recall = memory.recall(batch, beta=0.0)  # every weight is 0 or 1
    assert set(recall.stored_weights.unique().tolist()) <= {0, 1}
    assert set(recall.batch_weights.unique().tolist()) <= {0, 1}
    sees = []
    for stored, mates in zip(recall.stored_weights, recall.batch_weights, strict=True):
        classes = [set(memory["numbers"][c][row == 1].tolist()) for c, row in enumerate(stored)]
        for j in mates.nonzero()[:, 0].tolist():
            classes[int(batch.labels[j])].add(first + j)
        sees.append(classes)
    return sees


IMAGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.booleans() | st.just(True)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(
    IMAGES, st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1), st.sampled_from([sorted_list, slots])
)
@example([(0, 4 - n % 5, True) for n in range(30)], 3, [30], sorted_list)
@example([(0, 4 - n % 5, True) for n in range(30)], 3, [30], slots)
@example([(0, 2, True)] * 12, 4, [1], sorted_list)
def test_a_batch_is_as_one_image_at_a_time(images, capacity, sizes, rule) -> None:
    """Few entropies and classes, so that most are equal; cut anywhere; some images are not to be kept."""
    ours, theirs = memory(3, capacity), [[] for _ in range(3)]
    generator = torch.Generator().manual_seed(0)
    number = 0
    while number < len(images):
        part = images[number : number + sizes[number % len(sizes)]]
        labels, entropies, keep = (torch.tensor(column) for column in zip(*part, strict=True))
        embeddings = torch.randn(len(part), 3, generator=generator, dtype=torch.float64)
        batch = Arrivals(labels, entropies.double(), embeddings, keep)
        sees = found(ours, batch, number)
        for i, (label, entropy, kept) in enumerate(part):
            if kept:
                rule(theirs[label], float(entropy), number + i, capacity)
            assert sees[i] == [{n for _, n in entries} for entries in theirs]
        ours.insert(batch, numbers=torch.arange(number, number + len(part)))
        number += len(part)
        for c, entries in enumerate(theirs):
            count = int(ours.filled[c].sum())
            held = list(zip(ours["entropies"][c].tolist(), ours["numbers"][c].tolist(), strict=True))
            assert held[:count] == sorted(entries)
            assert held[count:] == [(0.0, 0)] * (capacity - count)
            assert not ours["embeddings"][c, count:].any()


def arrivals(rows: list[tuple[int, float]], keep: list[bool] | None = None) -> Arrivals:
    labels, entropies = zip(*rows, strict=True)
    embeddings = torch.eye(len(rows), 3, dtype=torch.float64)
    kept = torch.ones(len(rows), dtype=torch.bool) if keep is None else torch.tensor(keep)
    return Arrivals(torch.tensor(labels), torch.tensor(entropies, dtype=torch.float64), embeddings, kept)


def content(held: LowestEntropyMemory, label: int) -> list[tuple[float, int]]:
    entries = zip(held["entropies"][label].tolist(), held["numbers"][label].tolist(), strict=True)
    return list(entries)[: int(held.filled[label].sum())]


def test_a_table_of_insertions() -> None:
    """Two slots; entropies of the arrivals and what is held after each, worked out by hand."""
    held = memory(2, 2)
    table = [
        ((0, 0.9), [(0.9, 0)]),  # room
        ((0, 0.5), [(0.5, 1), (0.9, 0)]),  # room; in order of entropy
        ((0, 0.9), [(0.5, 1), (0.9, 0)]),  # not smaller than the worst
        ((0, 0.7), [(0.5, 1), (0.7, 3)]),  # replaces the worst
        ((0, 0.5), [(0.5, 1), (0.5, 4)]),  # behind its equal
        ((1, 3.0), [(0.5, 1), (0.5, 4)]),  # another class
        ((0, 0.1), [(0.1, 6), (0.5, 1)]),  # of two equal worst, the later one goes
        ((0, 0.1), [(0.1, 6), (0.1, 7)]),
        ((0, 0.0), [(0.0, 8), (0.1, 6)]),
    ]
    for number, (row, expected) in enumerate(table):
        held.insert(arrivals([row]), numbers=torch.tensor([number]))
        assert content(held, 0) == expected
    assert content(held, 1) == [(3.0, 5)]

    at_once = memory(2, 2)
    at_once.insert(arrivals([row for row, _ in table]), numbers=torch.arange(len(table)))
    for name, tensor in held.state().items():
        if name != "embeddings":
            assert torch.equal(tensor, at_once.state()[name])


def test_an_image_that_is_in_and_out_within_its_batch() -> None:
    """One slot: 2 is seen until 1 comes; 3 is never seen, not even by itself; 9 is not to be kept."""
    held = memory(1, 1)
    batch = arrivals([(0, 2.0), (0, 3.0), (0, -9.0), (0, 1.0)], keep=[True, True, False, True])
    assert [classes[0] for classes in found(held, batch, 0)] == [{0}, {0}, {0}, {3}]


def test_weights_fall_with_cosine_distance() -> None:
    held = memory(2, 2, width=2)
    z = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    keep = torch.ones(1, dtype=torch.bool)
    first = Arrivals(torch.tensor([1]), torch.tensor([0.3]).double(), z[:1], keep)
    held.insert(first, numbers=torch.tensor([0]))
    recall = held.recall(Arrivals(torch.tensor([0]), torch.tensor([0.3]).double(), z[1:], keep), beta=5.0)
    expected = torch.tensor([[[0, 0], [torch.exp(torch.tensor(-5 * 0.4)), 0]]], dtype=torch.float64)
    torch.testing.assert_close(recall.stored_weights, expected, rtol=0, atol=1e-7)
    assert recall.batch_weights.tolist() == [[1.0]]
    torch.testing.assert_close(recall.stored[0, 1, 0], torch.tensor(0.6).double())


def test_a_state_round_trip() -> None:
    held, again = memory(2, 3), memory(2, 3)
    held.insert(arrivals([(0, 0.5), (1, 0.2), (0, 0.1)]), numbers=torch.arange(3))
    again.restore(held.state())
    more = arrivals([(0, 0.3), (0, 0.2)])
    for each in (held, again):
        each.insert(more, numbers=torch.arange(3, 5))
    assert all(torch.equal(t, again.state()[name]) for name, t in held.state().items())
    assert sum(t.numel() * t.element_size() for t in held.state().values()) == held.most_bytes()


def spoil(state: dict[str, Tensor], name: str, place: tuple[int, ...], value: float) -> dict[str, Tensor]:
    changed = state[name].clone()
    changed[place] = value
    return {**state, name: changed}


def test_damaged_states_are_refused_and_change_nothing() -> None:
    held = memory(2, 3)
    held.insert(arrivals([(0, 0.5), (1, 0.2), (0, 0.1)]), numbers=torch.arange(3))
    state = held.state()
    bad = {
        "must hold": {k: v for k, v in state.items() if k != "numbers"},
        "counts in the state must be torch.int64": {**state, "counts": state["counts"].int()},
        "entropies in the state must be torch.float64 of shape": {
            **state,
            "entropies": state["entropies"][:1],
        },
        "embeddings in the state must be finite": spoil(state, "embeddings", (0, 0, 0), torch.nan),
        "counts in the state must be between 0 and capacity=3": spoil(state, "counts", (0,), 4),
        "between 0": spoil(state, "counts", (1,), -1),
        "not in the order of their entropies": spoil(state, "entropies", (0, 0), 0.6),
    }
    for message, damaged in bad.items():
        with pytest.raises(ValueError, match=message):
            held.restore(damaged)
    assert all(torch.equal(t, state[name]) for name, t in held.state().items())


def test_a_memory_that_does_not_fit() -> None:
    with pytest.raises(
        MemoryError, match=r"2 classes with capacity=1000000000000 take .* lower the capacity"
    ):
        memory(2, 10**12)
