"""Paired tests over seeds and mean ranks, against integrals, tables and loops."""

import math

import numpy as np
import pytest

from ramen.experiments.significance import holm, mean_ranks, paired_p, student_p


def density(x, freedom):
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    return np.exp(scale - (freedom + 1) / 2 * np.log1p(x**2 / freedom))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29])
@pytest.mark.parametrize("t", [0.0, 0.3, -1.7, 4.0])
def test_student_against_an_integral(t, freedom):
    x = np.linspace(0, abs(t), 20_001)
    y = density(x, freedom)
    inside = 2 * float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())
    assert student_p(t, freedom) == pytest.approx(1 - inside, abs=1e-8)


@pytest.mark.parametrize(
    ("t", "freedom"), [(12.7062, 1), (4.30265, 2), (3.18245, 3), (2.77645, 4), (2.26216, 9)]
)
def test_student_at_printed_quantiles(t, freedom):
    assert student_p(t, freedom) == pytest.approx(0.05, abs=1e-6)


def test_paired_differences():
    # mean 2, deviation 1, three seeds: t = 2 sqrt(3), two degrees of freedom: p = 1 - t / sqrt(t^2 + 2)
    assert paired_p([1.0, 2.0, 3.0]) == pytest.approx(1 - math.sqrt(12 / 14))
    assert paired_p([-1.0, -2.0, -3.0]) == paired_p([1.0, 2.0, 3.0])
    assert paired_p([1.0]) is None
    assert paired_p([0.0, 0.0]) == 1
    assert paired_p([2.0, 2.0]) == 0


def test_p_values_are_right_as_often_as_they_say():
    """Differences of mean zero: one in twenty tests is below 5 %."""
    draws = np.random.default_rng(0).normal(size=(4000, 5))
    below = np.mean([paired_p(row.tolist()) < 0.05 for row in draws])
    assert below == pytest.approx(0.05, abs=0.015)


def test_holm_by_hand():
    assert holm([0.04, 0.01, 0.5]) == [0.08, 0.03, 0.5]
    assert holm([0.03, 0.02]) == [0.04, 0.04]  # never below that of a smaller one
    assert holm([None, 0.9, 0.8]) == [None, 1.0, 1.0]
    assert holm([]) == []


def test_mean_ranks_by_hand():
    first = {"fog": 50.0, "snow": 40.0, "own": 99.0}
    second = {"fog": 60.0, "snow": 40.0}
    third = {"fog": 55.0, "snow": 30.0}
    # fog: 3, 1, 2; snow: 1.5, 1.5, 3; what not all have does not count
    assert mean_ranks([first, second, third]) == [2.25, 1.25, 2.5]
    assert mean_ranks([{"a": 1.0}, {"b": 1.0}]) == [None, None]
    assert mean_ranks([]) == []
