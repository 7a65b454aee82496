"""Random draws against their distributions, and against the raw words they are computed from."""

import math

import numpy as np
import pytest

from ramen.utils.draws import Draws


def test_a_permutation_is_the_argsort_of_the_raw_words():
    sequence = np.random.SeedSequence(3, spawn_key=(0xF5299398,))  # CRC-32 of "order"
    words = [int(w) for w in np.random.PCG64(sequence).random_raw(50)]
    assert Draws(3, "order").permutation(50).tolist() == sorted(range(50), key=lambda i: words[i])


def test_all_permutations_are_equally_likely():
    draws = Draws(0, "test")
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(12000):
        drawn = tuple(draws.permutation(4).tolist())
        counts[drawn] = counts.get(drawn, 0) + 1
    assert len(counts) == 24
    chi_square = sum((n - 500) ** 2 / 500 for n in counts.values())
    assert chi_square < 49.7  # with 23 degrees of freedom, chance exceeds it once in a thousand times


def test_uniform_and_normal():
    draws = Draws(1, "test")
    uniform, normal = draws.uniform(100_000), draws.normal(100_000)
    assert 0 < uniform.min() < uniform.max() < 1
    assert np.histogram(uniform, 10, (0, 1))[0] == pytest.approx(10_000, rel=0.04)
    assert normal.mean() == pytest.approx(0, abs=0.015)
    assert normal.std() == pytest.approx(1, abs=0.01)
    assert (abs(normal) < 1).mean() == pytest.approx(0.6827, abs=0.006)
    assert (normal**4).mean() == pytest.approx(3, abs=0.12)


@pytest.mark.parametrize("mean", [1.0, 1.5, 20.0])
def test_geometric(mean):
    lengths = Draws(2, "test").geometric(mean, 100_000)
    assert lengths.min() == 1
    assert lengths.mean() == pytest.approx(mean, rel=0.015)
    for size in (1, 2, 5):
        share = (1 - 1 / mean) ** (size - 1) / mean
        assert (lengths == size).mean() == pytest.approx(share, abs=0.006)


@pytest.mark.parametrize("concentration", [0.1, 1.0, 30.0])
def test_dirichlet(concentration):
    draws = Draws(3, "test")
    proportions = np.stack([draws.dirichlet(concentration, 5) for _ in range(8000)])
    assert proportions.sum(1) == pytest.approx(1)
    assert proportions.mean(0) == pytest.approx(0.2, abs=0.015)
    variance = 0.2 * 0.8 / (5 * concentration + 1)
    assert proportions.var(0) == pytest.approx(variance, rel=0.08)
    covariance = -0.2 * 0.2 / (5 * concentration + 1)
    assert np.cov(proportions[:, 0], proportions[:, 3])[0, 1] == pytest.approx(covariance, rel=0.2)


def test_a_tiny_concentration_puts_everything_into_one_part():
    proportions = Draws(4, "test").dirichlet(1e-5, 10)
    assert sorted(proportions.tolist()) == pytest.approx([0] * 9 + [1])


def test_gamma_has_the_expected_moments():
    numbers = Draws(5, "test")._gamma(1.1, 100_000)
    assert numbers.mean() == pytest.approx(1.1, rel=0.015)
    assert numbers.var() == pytest.approx(1.1, rel=0.04)
    third = ((numbers - numbers.mean()) ** 3).mean() / numbers.std() ** 3
    assert third == pytest.approx(2 / math.sqrt(1.1), rel=0.08)


def test_draws_depend_only_on_seed_and_purpose():
    first = Draws(0, "a").uniform(5).tolist()
    assert first == Draws(0, "a").uniform(5).tolist()
    assert first != Draws(1, "a").uniform(5).tolist()
    assert first != Draws(0, "b").uniform(5).tolist()
