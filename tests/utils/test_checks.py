"""Argument checks: what passes, and messages that name the argument, what came and what was expected."""

import math
from fractions import Fraction

import numpy as np
import pytest

from ramen.utils import checks


def test_the_nearest_name_comes_first() -> None:
    assert checks.nearest("tentt", ["tent", "note"]) == "; did you mean 'tent'? Valid: note, tent"
    assert checks.nearest("VIT-b-32", ["ViT-B-32", "RN50"]).startswith("; did you mean 'ViT-B-32'?")
    assert checks.nearest("zzz", ["tent"]) == " Valid: tent"
    assert checks.nearest("x", []) == " (there are none)"
    assert "(100 in all)" in checks.nearest("x", [str(i) for i in range(100)])


def test_numpys_numbers_are_numbers() -> None:
    assert checks.integer("capacity", np.int64(75), 1) == 75
    assert checks.number("lr", np.float32(0.5), 0) == 0.5
    assert type(checks.integer("capacity", np.int64(75), 1)) is int


def test_integers_in_their_range() -> None:
    assert [checks.integer("topk", value, 1, 3) for value in (1, 2, 3)] == [1, 2, 3]
    assert checks.integer("seed", 10**30, 0) == 10**30
    for value in (0, 76):
        with pytest.raises(ValueError, match=rf"^topk must be between 1 and capacity=75, got {value}$"):
            checks.integer("topk", value, 1, 75, "capacity")
    with pytest.raises(ValueError, match=r"^batch must be between 1 and 9, got 10$"):
        checks.integer("batch", 10, 1, 9)
    with pytest.raises(ValueError, match=r"^capacity must be at least 1, got 0$"):
        checks.integer("capacity", 0, 1)


@pytest.mark.parametrize("value", [1.0, "1", None, True, np.float64(2)])
def test_what_is_no_integer(value: object) -> None:
    with pytest.raises(TypeError, match=f"^topk must be a whole number, got {type(value).__name__} "):
        checks.integer("topk", value, 1)


def test_numbers_in_their_range() -> None:
    assert checks.number("lr", 0, 0) == 0
    assert checks.number("share", Fraction(1, 4), 0) == 0.25
    with pytest.raises(ValueError, match=r"^lr must be finite and at least 0, got -1e-09$"):
        checks.number("lr", -1e-9, 0)
    with pytest.raises(ValueError, match=r"^beta must be finite and above 0, got 0$"):
        checks.number("beta", 0, 0, exclusive=True)
    for value in (math.inf, math.nan):
        with pytest.raises(ValueError, match=f"^lr must be finite and at least 0, got {value}$"):
            checks.number("lr", value, 0)


@pytest.mark.parametrize("value", ["1", None, True, 1j])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(TypeError, match=f"^lr must be a number, got {type(value).__name__} "):
        checks.number("lr", value, 0)


def test_choices() -> None:
    assert checks.choice("fifo", "exact", ("exact", "float16")) == "exact"
    for value in ("Exact", None, 3):
        with pytest.raises(ValueError, match=f"^fifo must be one of 'exact', 'float16', got {value!r}$"):
            checks.choice("fifo", value, iter(("exact", "float16")))


def test_flags() -> None:
    assert checks.flag("balance", True) is True
    assert checks.flag("balance", False) is False
    for value in (1, "yes", None, np.True_):
        with pytest.raises(TypeError, match=f"^balance must be True or False, got {type(value).__name__} "):
            checks.flag("balance", value)
