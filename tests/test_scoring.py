import numpy as np
import pytest
import torch

from ramen import scoring


def test_domain_accuracies_count_each_domain_by_itself():
    correct = torch.tensor([True, False, True, True, False])
    domains = torch.tensor([2, 2, 0, 0, 0])
    accuracies = scoring.domain_accuracies(correct, domains, 3)
    assert accuracies[0] == pytest.approx(200 / 3)
    assert accuracies[1].isnan()
    assert accuracies[2] == pytest.approx(50)


def test_paired_difference_against_a_plain_computation():
    rng = np.random.default_rng(0)
    domains = rng.integers(0, 3, 500)
    a, b = rng.random(500) < 0.8, rng.random(500) < 0.6
    means, variances = [], []
    for domain in range(3):
        gains = a[domains == domain].astype(float) - b[domains == domain]
        means.append(gains.mean())
        variances.append(gains.var(ddof=1) / len(gains))
    expected, error = np.mean(means), np.sqrt(np.sum(variances)) / 3
    difference = scoring.paired_difference(*map(torch.from_numpy, (a, b, domains)), 3)
    assert difference.points == pytest.approx(100 * expected)
    assert difference.margin == pytest.approx(196 * error, rel=1e-3)
    assert str(difference).startswith(f"{100 * expected:+.2f} ± ")


def test_the_interval_covers_the_truth():
    """Of many streams with a known difference, 95 % of the intervals hold it."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        domains = np.arange(600) % 4
        base = rng.random(600) < 0.7
        better = base | (rng.random(600) < 0.2)  # repairs a fifth of the mistakes: 6 points
        found = scoring.paired_difference(*map(torch.from_numpy, (better, base, domains)), 4)
        held += abs(found.points - 6) <= found.margin
    assert 0.91 <= held / 400 <= 0.985


def test_composition_counts_valid_pairs():
    queries = torch.tensor([0, 1, 1])
    tags = torch.tensor([[0, 1], [1, 1], [0, 2]])
    valid = torch.tensor([[True, True], [True, False], [True, True]])
    assert scoring.composition(queries, tags, valid, 3).tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0]]
