"""Scores of the end and of the worst parts of a stream, against loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen.experiments.analysis.spread import worst_tenth
from ramen.experiments.analysis.tail import TailScores, accuracies, tail_scores


@given(right=st.lists(st.booleans(), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_short_streams_have_ten_windows_or_one_per_image(right):
    count = min(10, len(right))
    windows = [right[len(right) * i // count : len(right) * (i + 1) // count] for i in range(count)]
    assert sum(map(len, windows)) == len(right)
    assert max(map(len, windows)) - min(map(len, windows)) <= 1
    found = tail_scores(torch.tensor(right))
    assert found.windows == count
    assert found.worst == pytest.approx(min(100 * sum(window) / len(window) for window in windows))
    last = right[len(right) - math.ceil(len(right) / 10) :]
    assert found.last == pytest.approx(100 * sum(last) / len(last))


def test_long_streams_have_windows_of_a_hundred_images():
    """Thirty windows, the worst three of which are known."""
    right = torch.ones(3000, dtype=torch.bool)
    right[500:600] = False
    right[1100:1150] = False
    right[2000:2030] = False
    assert tail_scores(right) == TailScores(last=100.0, worst=pytest.approx((0 + 50 + 70) / 3), windows=30)
    right[2900:] = False
    assert tail_scores(right).last == pytest.approx(200 / 3)


def test_accuracies_of_parts():
    right = torch.tensor([True, False, False, True, True, True])
    assert accuracies(right, [0, 1, 3]) == [100.0, 0.0, 100.0]


@pytest.mark.parametrize(("count", "expected"), [(1, 0.0), (10, 0.0), (11, 0.5), (30, 1.0), (70, 3.0)])
def test_the_lowest_tenth(count, expected):
    assert worst_tenth([float(count - 1 - i) for i in range(count)]) == expected
