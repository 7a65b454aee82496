"""RoTTA's memory: by hand, against the lists of its paper, and its edges."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen.memory.policies import TimelyBalanced
from tests.oracles.image_lists import TimelyLists

LN2 = math.log(2)


# Four slots, two classes: a quota of two. Entropies are shares of ln 2. A score is a share and, by its
# age, 0: 0.5, 1: 0.562, 2: 0.622, 3: 0.679, 4: 0.731, 5: 0.777, 6: 0.818.
# Each row: label, share, slot taken, labels, ages afterwards.
BY_HAND = [
    (0, 0.5, 0, [0], [1]),
    (0, 0.1, 1, [0, 0], [2, 1]),
    # class 0 has its quota, though the memory is not full: 0.622 + 0.5 against 0.5 + 0.9: refused
    (0, 0.9, None, [0, 0], [3, 2]),
    # 0.679 + 0.5 against 0.5 + 0.6: the first one gives way, the other scores only 0.622 + 0.1
    (0, 0.6, 0, [0, 0], [1, 3]),
    (1, 0.3, 2, [0, 0, 1], [2, 4, 1]),
    (1, 0.2, 3, [0, 0, 1, 1], [3, 5, 2, 1]),
    # class 1: 0.622 + 0.3 = 0.922 and 0.562 + 0.2 against 0.5 + 0.43: refused, by little
    (1, 0.43, None, [0, 0, 1, 1], [4, 6, 3, 2]),
    # class 1: 0.679 + 0.3 = 0.979 against 0.5 + 0.47
    (1, 0.47, 2, [0, 0, 1, 1], [5, 7, 1, 3]),
]


def test_by_hand() -> None:
    memory = TimelyBalanced(4, 2)
    for step, (label, share, slot, labels, ages) in enumerate(BY_HAND):
        got = memory.insert(label, share * LN2)
        assert (got, memory.labels, memory.ages) == (slot, labels, ages), f"step {step}"


# Three slots, five classes: a quota of 0.6, so one item a class.
MORE_CLASSES_THAN_SLOTS = [
    (0, 0.2, 0, [0]),
    (0, 0.2, 0, [0]),  # the same class again: the older one has a larger score and gives way
    (0, 0.9, None, [0]),
    (3, 0.7, 1, [0, 3]),
    (1, 0.4, 2, [0, 3, 1]),
    # full; all three classes have the most items: the worst of all gives way, class 3's
    (4, 0.3, 1, [0, 4, 1]),
    # nobody is as unsure as this one
    (2, 1.0, None, [0, 4, 1]),
    (1, 0.39, 2, [0, 4, 1]),
]


def test_more_classes_than_slots() -> None:
    memory = TimelyBalanced(3, 5)
    for step, (label, share, slot, labels) in enumerate(MORE_CLASSES_THAN_SLOTS):
        assert (memory.insert(label, share * math.log(5)), memory.labels) == (slot, labels), f"step {step}"


def test_a_full_memory_takes_from_the_largest_classes_alone() -> None:
    # quota 4/3: two items of a class at most. Class 0 has two items, class 1 one very unsure item.
    memory = TimelyBalanced(4, 3)
    for label, share in [(0, 0.1), (0, 0.2), (1, 0.9), (2, 0.8)]:
        memory.insert(label, share * math.log(3))
    # class 2 is below its quota; class 0 is largest: 0.679 + 0.2 > 0.731 + 0.1, and > 0.5 + 0.3
    assert memory.insert(2, 0.3 * math.log(3)) == 1
    assert memory.labels == [0, 2, 1, 2]


def test_a_fractional_quota_lets_one_more_in() -> None:
    memory = TimelyBalanced(64, 10)  # 6.4
    for _ in range(20):
        memory.insert(3, 1.0)
    assert memory.labels == [3] * 7


def test_equal_scores() -> None:
    """The last one in the order of classes and, within a class, of arrival gives way."""
    memory = TimelyBalanced(4, 3, timeliness=0.0)
    for label in (1, 0, 1, 0):
        memory.insert(label, 0.5)
    assert memory.insert(2, 0.5) is None  # an equal score does not give way
    assert memory.insert(2, 0.4) == 2  # class 1's second
    assert memory.insert(2, 0.4) == 3  # class 0 is now the only one with two: its second
    assert memory.labels == [1, 0, 2, 2]


@settings(deadline=None)
@given(
    st.integers(1, 9),
    st.integers(2, 6),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.3, 0.31, 0.7, 1.0])), max_size=120),
)
def test_equals_the_papers_lists(capacity: int, classes: int, arrivals: list[tuple[int, float]]) -> None:
    memory, lists = TimelyBalanced(capacity, classes), TimelyLists(capacity, classes)
    for label, entropy in arrivals:
        assert memory.insert(label % classes, entropy) == lists.insert(label % classes, entropy)
        items = [tuple(item[name] for name in ("slot", "label", "age", "entropy")) for item in lists.items()]
        held = zip(range(capacity), memory.labels, memory.ages, memory.entropies, strict=False)
        assert list(held) == items


def test_very_old_items_tie_at_the_largest_age_score() -> None:
    memory, lists = TimelyBalanced(1, 2), TimelyLists(1, 2)
    for _ in range(50):
        assert memory.insert(0, 0.9) == lists.insert(0, 0.9)
    memory.ages = [10**6]
    assert memory.insert(0, 0.5) == 0


def test_a_single_class() -> None:
    memory = TimelyBalanced(2, 1)
    assert [memory.insert(0, 0.0) for _ in range(3)] == [0, 1, 0]


def test_continues_from_a_state() -> None:
    memory = TimelyBalanced(4, 2)
    for label, share, *_ in BY_HAND[:4]:
        memory.insert(label, share * LN2)
    resumed = TimelyBalanced(4, 2).restored(memory.state(), 2)
    for label, share, slot, labels, ages in BY_HAND[4:]:
        assert (resumed.insert(label, share * LN2), resumed.labels, resumed.ages) == (slot, labels, ages)
    assert memory.labels == BY_HAND[3][3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.tensor([0, 2])}, "labels"),
        ({"ages": torch.tensor([0, 1])}, "ages"),
        ({"ages": torch.tensor([1])}, "ages"),
        ({"entropies": torch.tensor([0.0, math.nan], dtype=torch.float64)}, "entropies"),
        ({"entropies": torch.zeros(2)}, "entropies"),
    ],
)
def test_damaged_states(change: dict, message: str) -> None:
    memory = TimelyBalanced(4, 2)
    for label, share, *_ in BY_HAND[:4]:
        memory.insert(label, share * LN2)
    with pytest.raises(ValueError, match=message):
        memory.restored({**memory.state(), **change}, 2)
