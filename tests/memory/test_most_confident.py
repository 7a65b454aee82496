"""The most confident images of each class: by hand, and against sorting everything that came."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen.memory.policies import MostConfident


def test_by_hand() -> None:
    kept = MostConfident(shots=2, classes=3)
    rows = [(1, 0.5, 0), (1, 0.3, 1), (0, 0.1, 2), (1, 0.3, None), (1, 0.4, 1), (1, 0.45, 1), (1, 0.6, 1)]
    assert [kept.insert(label, confidence) for label, confidence, _ in rows] == [slot for *_, slot in rows]
    assert kept.labels == [1, 1, 0]
    assert kept.confidences == [0.5, 0.6, 0.1]
    assert kept.sample(1, [0.9, 0.2, 0.5]) == [1, 2]
    assert kept.sample(1, [0.1, 0.2, 0.5]) == [0, 2]
    assert kept.sample(5, [0.1, 0.2, 0.5]) == [0, 1, 2]
    assert kept.emptied().sample(1, []) == []


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1)), max_size=40, unique_by=lambda row: row[1]),
)
def test_equals_sorting_everything(shots: int, rows: list[tuple[int, float]]) -> None:
    kept, stored = MostConfident(shots, 3), {}
    for number, (label, confidence) in enumerate(rows):
        slot = kept.insert(label, confidence)
        if slot is not None:
            stored[slot] = number
    for label in range(3):
        best = sorted((c for other, c in rows if other == label), reverse=True)[:shots]
        slots = [slot for slot, other in enumerate(kept.labels) if other == label]
        assert sorted((kept.confidences[slot] for slot in slots), reverse=True) == best
        assert all(rows[stored[slot]] == (label, kept.confidences[slot]) for slot in slots)


def test_a_state_continues() -> None:
    kept = MostConfident(2, 3)
    for row in ((0, 0.5), (2, 0.25), (0, 0.75)):
        kept.insert(*row)
    other = MostConfident(2, 3).restored(kept.state(), 3)
    assert [k.insert(0, 0.6) for k in (kept, other)] == [0, 0]
    assert (kept.labels, kept.confidences) == (other.labels, other.confidences)
    assert sum(t.nbytes for t in kept.state().values()) <= kept.most_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.tensor([0, 3])}, "labels"),
        ({"labels": torch.tensor([0])}, "labels"),
        ({"labels": torch.tensor([1, 1])}, "labels"),
        ({"confidences": torch.tensor([0.5, -1.0]).double()}, "confidences"),
        ({"confidences": torch.tensor([0.5, torch.nan]).double()}, "confidences"),
    ],
)
def test_damaged_states(change: dict, message: str) -> None:
    kept = MostConfident(1, 3)
    kept.insert(0, 0.5), kept.insert(1, 0.5)
    with pytest.raises(ValueError, match=message):
        kept.restored({**kept.state(), **change}, 2)
