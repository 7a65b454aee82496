"""Pillow's weights, and the bounds that make sums with them exact."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen.images import resize
from ramen.images.resize import FILTERS, Span, fixed_point_weights, used_pixels


@pytest.mark.parametrize("interpolation", sorted(FILTERS))
@pytest.mark.parametrize(
    ("old", "new"), [(32, 224), (500, 224), (5000, 100), (224, 32), (2, 300), (20_000, 20)]
)
def test_every_sum_is_exact_in_float32_and_every_factor_in_tf32(
    old: int, new: int, interpolation: str
) -> None:
    span = Span(old, new, 0, new)
    weights = fixed_point_weights(span, interpolation, *used_pixels(span, interpolation))
    bits, digits = resize._digits(weights, span)
    assert np.array_equal(sum(digit << (bits * place) for place, digit in enumerate(digits)), weights)
    matrix = resize._matrix(span, interpolation, torch.device("cpu"), torch.float32)
    mantissa, _ = np.frexp(matrix.stacked.numpy())
    assert np.array_equal(mantissa * 2**11, np.round(mantissa * 2**11))  # eleven bits
    carried = 0
    for digit, scale in zip(digits, matrix.scales, strict=True):
        largest = 255 * int(np.abs(digit).sum(1).max()) + carried  # of any partial sum, in any order
        assert largest < 2**24
        carried = int(largest * scale) + 1


def test_weights_by_hand() -> None:
    # two pixels from four: triangles of twice the width, whose ends are cut off at the border
    assert (fixed_point_weights(Span(4, 2, 0, 2), "bilinear", 0, 4) / 2**22 * 7).round(5).tolist() == [
        [3, 3, 1, 0],
        [0, 1, 3, 3],
    ]
    assert (fixed_point_weights(Span(3, 6, 2, 4), "nearest", 0, 3) >> 22).tolist() == [[0, 1, 0]] * 2


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000), st.data())
def test_no_other_pixel_has_a_weight(old: int, new: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, new - 1))
    span = Span(old, new, start, data.draw(st.integers(start + 1, min(new, start + 50))))
    interpolation = data.draw(st.sampled_from(sorted(FILTERS)))
    first, stop = used_pixels(span, interpolation)
    assert 0 <= first < stop <= old
    if old != new:  # otherwise nothing is resized
        every = fixed_point_weights(span, interpolation, 0, old)
        assert np.array_equal(fixed_point_weights(span, interpolation, first, stop), every[:, first:stop])
        assert not every[:, :first].any()
        assert not every[:, stop:].any()


def test_steps_of_the_nearest_filter_are_added_one_by_one() -> None:
    """As by Pillow: in pieces or not, with the same rounding of every addition."""
    old, new = 7_001, 200_003  # several pieces of steps
    position, positions = 0.5 * (old / new), []
    for _ in range(new):
        positions.append(int(position))
        position += old / new
    span = Span(old, new, new - 3_000, new)
    weights = fixed_point_weights(span, "nearest", 0, old)
    assert weights.argmax(1).tolist() == positions[-3_000:]
