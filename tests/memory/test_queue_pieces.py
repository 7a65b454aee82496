"""How queues are cut and dealt out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen.memory.queue_pieces import QueuePieces

SIZES = st.tuples(st.integers(1, 12), st.integers(1, 24), st.integers(1, 8))


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES)
def test_every_slot_has_one_place(sizes: tuple[int, int, int]) -> None:
    queues, capacity, processes = sizes
    pieces = QueuePieces.dealt(queues, capacity, processes)
    slots = torch.arange(queues * capacity)
    owners, there = pieces.slot_there(slots)
    assert owners.max() < processes
    assert there.max() < pieces.entries_each
    assert len({*zip(owners.tolist(), there.tolist(), strict=True)}) == len(slots)
    for rank in range(processes):
        own = owners == rank
        assert torch.equal(pieces.slot_here(rank, there[own]), slots[own])


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, arrivals=st.lists(st.integers(0, 60), min_size=12, max_size=12))
def test_pieces_are_queues_of_their_own(sizes: tuple[int, int, int], arrivals: list[int]) -> None:
    """Entries enter one by one: a piece counts its own and keeps the last ones that the queue keeps."""
    queues, capacity, processes = sizes
    pieces = QueuePieces.dealt(queues, capacity, processes)
    held: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for queue in range(queues):
        for number in range(arrivals[queue]):
            piece = pieces.piece(torch.tensor(queue), torch.tensor(number))
            place = int(pieces.owner(piece)), int(pieces.queue_there(piece))
            held.setdefault(place, []).append((queue, number))
    for rank in range(processes):
        counts = pieces.counts_there(rank, torch.tensor(arrivals[:queues]))
        assert counts.tolist() == [len(held.get((rank, queue), [])) for queue in range(pieces.queues_each)]
    kept = {entry for entries in held.values() for entry in entries[-pieces.piece_capacity :]}
    assert kept == {
        (queue, number)
        for queue in range(queues)
        for number in range(max(0, arrivals[queue] - capacity), arrivals[queue])
    }


@pytest.mark.parametrize(
    ("queues", "capacity", "processes"),
    [
        (1000, 75, 8),
        (100, 750, 8),
        (10, 7500, 8),
        (10, 7500, 3),
        (345, 300, 16),
        (1, 75000, 8),
        (1, 75000, 7),
    ],
)
def test_shares_are_nearly_equal(queues: int, capacity: int, processes: int) -> None:
    pieces = QueuePieces.dealt(queues, capacity, processes)
    assert pieces.entries_each * processes <= 1.15 * queues * capacity


def test_whole_queues_if_they_must_be() -> None:
    assert QueuePieces.dealt(1, 100, 4, most=1).per_queue == 1
    assert QueuePieces.dealt(1, 7, 4).per_queue == 7  # a prime number has no other pieces
