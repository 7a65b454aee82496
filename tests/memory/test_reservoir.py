"""Prediction-balanced reservoir sampling: by hand, against plain lists, and its distribution."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen.memory.policies import Reservoir
from tests.oracles.image_lists import BalancedLists

# Four slots, three classes. Each row: label, the two draws, the slot taken, the labels held afterwards.
BY_HAND = [
    # not yet full: everything is taken, whatever is drawn
    (0, (0.9, 0.9), 0, [0]),
    (0, (0.9, 0.9), 1, [0, 0]),
    (0, (0.9, 0.9), 2, [0, 0, 0]),
    (1, (0.9, 0.9), 3, [0, 0, 0, 1]),
    # class 0 alone is largest, and 4 of it have come: it takes one of its own slots with probability 3/4
    (0, (0.75, 0.0), None, [0, 0, 0, 1]),
    # 5 have come: 3/5; the last of its three slots
    (0, (0.59, 0.99), 2, [0, 0, 0, 1]),
    # class 1 is not largest: it takes a slot of class 0, the middle one
    (1, (0.99, 0.5), 1, [0, 1, 0, 1]),
    # classes 0 and 1 are both largest; class 2 takes from class 0 with a small first draw ...
    (2, (0.49, 0.99), 2, [0, 1, 2, 1]),
    # class 1 is largest with 2 of 3 that have come: 2/3
    (1, (0.67, 0.0), None, [0, 1, 2, 1]),
    # 2 of 4
    (1, (0.49, 0.0), 1, [0, 1, 2, 1]),
    # class 0 takes from class 1
    (0, (0.0, 0.99), 3, [0, 1, 2, 0]),
    # now 2, 1, 1: class 2 takes from class 0, its second slot
    (2, (0.5, 0.5), 3, [0, 1, 2, 2]),
    # 1, 1, 2: class 1 takes from class 2, its first slot
    (1, (0.5, 0.49), 2, [0, 1, 1, 2]),
    # 1, 2, 1: class 1 is largest; 2 of 6 have room
    (1, (0.34, 0.0), None, [0, 1, 1, 2]),
]


def test_by_hand() -> None:
    reservoir = Reservoir(4, 3)
    for step, (label, draws, slot, held) in enumerate(BY_HAND):
        assert (reservoir.insert(label, draws), reservoir.labels) == (slot, held), f"step {step}"
    assert reservoir.seen == [6, 6, 2]


def test_a_larger_first_draw_takes_from_the_second_of_two_largest_classes() -> None:
    reservoir = Reservoir(4, 3)
    for label in (0, 1, 1, 0):
        reservoir.insert(label, (0.0, 0.0))
    assert reservoir.insert(2, (0.5, 0.0)) == 1
    assert reservoir.labels == [0, 2, 1, 0]


UNIT = st.floats(0, 1, exclude_max=True)


@settings(deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 5), UNIT, UNIT), max_size=80),
)
def test_equals_plain_lists(capacity: int, classes: int, arrivals: list[tuple[int, float, float]]) -> None:
    reservoir, lists = Reservoir(capacity, classes), BalancedLists(capacity, classes)
    for label, *draws in arrivals:
        assert reservoir.insert(label % classes, draws) == lists.insert(label % classes, draws)
        held = [reservoir.labels.count(c) for c in range(classes)]
        assert held == [len(items) for items in lists.lists]
        assert len(reservoir.labels) <= capacity
    assert reservoir.seen == lists.counts


def test_within_a_class_every_image_stays_with_the_same_probability() -> None:
    generator = torch.Generator().manual_seed(0)
    stays = torch.zeros(20)
    for _ in range(2000):
        reservoir, items = Reservoir(4, 2), [0] * 4
        for index, draws in enumerate(torch.rand(20, 2, generator=generator, dtype=torch.float64).tolist()):
            slot = reservoir.insert(1, draws)
            if slot is not None:
                items[slot] = index
        stays[items] += 1
    # binomial with probability 1/5: a standard deviation of 0.009
    assert (stays / 2000 - 0.2).abs().max() < 0.04


def test_rare_classes_get_their_share() -> None:
    generator = torch.Generator().manual_seed(1)
    reservoir = Reservoir(12, 4)
    labels = [0] * 400 + [1] * 30 + [2] * 10 + [3] * 5
    for index in torch.randperm(len(labels), generator=generator).tolist():
        reservoir.insert(labels[index], torch.rand(2, generator=generator).tolist())
    assert [reservoir.labels.count(c) for c in range(4)] == [3, 3, 3, 3]


def test_continues_from_a_state() -> None:
    reservoir = Reservoir(4, 3)
    for label, draws, *_ in BY_HAND[:7]:
        reservoir.insert(label, draws)
    resumed = Reservoir(4, 3).restored(reservoir.state(), 4)
    for label, draws, slot, held in BY_HAND[7:]:
        assert (resumed.insert(label, draws), resumed.labels) == (slot, held)
    assert reservoir.labels == BY_HAND[6][3]  # not shared


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.tensor([0, 1, 3, 0])}, "labels"),
        ({"labels": torch.tensor([0, 1, -1, 0])}, "labels"),
        ({"labels": torch.tensor([0, 1])}, "labels"),
        ({"labels": torch.tensor([1, 1, 1, 1])}, "seen"),
        ({"seen": torch.tensor([4, 4])}, "seen"),
    ],
)
def test_damaged_states(change: dict, message: str) -> None:
    reservoir = Reservoir(4, 3)
    for label, draws, *_ in BY_HAND[:7]:
        reservoir.insert(label, draws)
    with pytest.raises(ValueError, match=message):
        reservoir.restored({**reservoir.state(), **change}, 4)
