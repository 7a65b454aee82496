"""The information of answers: against plain numbers, its bounds, and what few images do to it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ramen


def entropy_of(p: list[float]) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


@given(images=st.integers(1, 12), classes=st.integers(1, 9), scale=st.floats(0, 100), seed=st.integers(0, 99))
def test_the_definition_and_its_bounds(images: int, classes: int, scale: float, seed: int) -> None:
    logits = scale * torch.randn(images, classes, generator=torch.Generator().manual_seed(seed))
    rows = logits.double().softmax(1).tolist()
    mean = [sum(column) / images for column in zip(*rows, strict=True)]
    expected = entropy_of(mean) - sum(map(entropy_of, rows)) / images
    value = ramen.information(logits)
    assert float(value) == pytest.approx(expected, abs=1e-9)
    assert 0 <= float(value) <= math.log(min(images, classes)) + 1e-9


def test_answers_that_say_nothing_and_answers_that_say_all() -> None:
    one_class = torch.zeros(50, 10).index_fill_(1, torch.tensor([3]), 40.0)
    unsure = torch.zeros(50, 10)
    noise = 0.1 * torch.randn(500, 10, generator=torch.Generator().manual_seed(0))
    assert float(ramen.information(one_class)) == pytest.approx(0, abs=1e-9)
    assert float(ramen.information(unsure)) == pytest.approx(0, abs=1e-9)
    assert float(ramen.information(noise)) < 0.01
    assert float(ramen.information(40 * torch.eye(10).repeat(5, 1))) == pytest.approx(math.log(10))


def test_few_images_make_it_smaller_by_what_is_documented() -> None:
    draws = torch.randint(20, (400, 100), generator=torch.Generator().manual_seed(0))
    values = [float(ramen.information(50 * torch.eye(20)[labels])) for labels in draws]
    assert math.log(20) - sum(values) / len(values) == pytest.approx(19 / 200, rel=0.1)


@pytest.mark.parametrize(
    ("logits", "error"),
    [
        ([[1.0, 2.0]], TypeError),
        (torch.zeros(3, 2, dtype=torch.int64), TypeError),
        (torch.zeros(3), ValueError),
        (torch.zeros(0, 3), ValueError),
        (torch.tensor([[1.0, torch.nan]]), ValueError),
    ],
)
def test_bad_logits_are_named(logits: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="logits"):
        ramen.information(logits)  # type: ignore[arg-type]
