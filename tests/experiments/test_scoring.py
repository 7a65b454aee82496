"""Scores against plain computations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen import scoring
from ramen.experiments.scoring import TailScores, accuracies, tail_scores
from ramen.experiments.significance import worst_tenth


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


def outcomes(seed, images=400, domains=3):
    rng = np.random.default_rng(seed)
    return rng.random(images) < 0.7, rng.random(images) < 0.5, rng.integers(0, domains, images)


@pytest.mark.parametrize("seed", range(3))
def test_changes_against_a_plain_count(seed):
    now, before, domains = outcomes(seed)
    found = scoring.domain_changes(*map(torch.from_numpy, (now, before, domains)), 4)
    for domain in range(4):
        pairs = [(a, b) for a, b, d in zip(now, before, domains, strict=True) if d == domain]
        assert found[domain] == scoring.Changes(
            both_right=pairs.count((True, True)),
            repaired=pairs.count((True, False)),
            broken=pairs.count((False, True)),
            both_wrong=pairs.count((False, False)),
        )
    overall = scoring.changes(torch.from_numpy(now), torch.from_numpy(before))
    assert overall.repaired == sum(c.repaired for c in found)
    assert overall.broken == sum(c.broken for c in found)
    gain = 100 * (overall.repaired - overall.broken) / 400
    assert gain == pytest.approx(100 * (now.mean() - before.mean()))


def test_balanced_accuracy_against_a_plain_computation():
    correct, _, labels = outcomes(5, domains=4)
    labels[labels == 2] = 3  # a class that does not occur
    balanced = scoring.balanced_accuracy(torch.from_numpy(correct), torch.from_numpy(labels))
    assert balanced == pytest.approx(np.mean([100 * correct[labels == c].mean() for c in (0, 1, 3)]))


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_calibration_error_against_a_plain_computation(bins):
    rng = np.random.default_rng(3)
    sure, right = rng.random(500), rng.random(500) < 0.6
    error = 0.0
    for b in range(bins):
        inside = (sure > b / bins) & (sure <= (b + 1) / bins)
        if inside.any():
            error += inside.mean() * abs(sure[inside].mean() - right[inside].mean())
    found = scoring.calibration_error(torch.from_numpy(sure), torch.from_numpy(right), bins)
    assert found == pytest.approx(100 * error)


def test_calibration_by_hand():
    # bins of a fifth: 0.2 lies in the first with 0.1, 0.3 alone in the second, 1.0 in the last
    sure = torch.tensor([0.2, 0.1, 0.3, 1.0], dtype=torch.float64)
    right = torch.tensor([True, False, False, True])
    assert scoring.calibration_error(sure, right, 5) == pytest.approx(100 * (0.7 + 0.3) / 4)
    assert scoring.calibration_error(torch.zeros(2), torch.tensor([False, False])) == 0
    perfect = torch.rand(20000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = torch.rand(20000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) < perfect
    assert scoring.calibration_error(perfect, drawn) < 2


def test_confidences_are_those_of_the_logits_as_they_are():
    logits = torch.randn(20, 6, generator=torch.Generator().manual_seed(2)) * 10
    plain = [max(np.exp(row) / np.exp(row).sum()) for row in logits.double().numpy()]
    assert scoring.confidences(logits).tolist() == pytest.approx(plain)


YES, ONE = torch.tensor([True, False]), torch.tensor([True])


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


def answers(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return 3 * torch.randn(count, 5, generator=generator), torch.randint(5, (count,), generator=generator)


@pytest.mark.parametrize("count", [1, 7, 15, 100])
def test_certainty_against_loops(count):
    logits, labels = answers(count)
    shares = np.exp(logits.double().numpy())
    shares /= shares.sum(1, keepdims=True)
    correct = logits.argmax(1) == labels
    confidence, right, brier = scoring.probabilities(logits, labels)
    found = scoring.certainty(correct, confidence, right, brier)
    wanted = np.eye(5)[labels.numpy()]
    assert found["nll"] == pytest.approx(-np.log(shares[wanted == 1]).mean())
    assert found["brier"] == pytest.approx(((shares - wanted) ** 2).sum(1).mean())
    order = sorted(range(count), key=lambda n: -shares[n].max())
    errors = [np.mean([not correct[n] for n in order[: k + 1]]) for k in range(count)]
    assert found["aurc"] == pytest.approx(100 * np.mean(errors))
    parts = [part for part in np.array_split(order[::-1], 15) if len(part)]
    gaps = [len(part) * abs(np.mean([shares[n].max() - float(correct[n]) for n in part])) for part in parts]
    assert found["ece_mass"] == pytest.approx(100 * sum(gaps) / count)
    assert [one["images"] for one in found["reliability"]] == [len(part) for part in parts]


def test_images_of_one_confidence_have_no_order():
    sure, right = torch.full((4,), 0.5), torch.tensor([True, False, True, False])
    assert (
        scoring.risk_coverage(sure, right) == scoring.risk_coverage(sure, right.flip(0)) == pytest.approx(50)
    )


def test_an_answer_that_was_impossible_leaves_the_likelihood_finite():
    confidence, right, brier = scoring.probabilities(torch.tensor([[0.0, 2000.0]]), torch.tensor([0]))
    found = scoring.certainty(torch.tensor([False]), confidence, right, brier)
    assert math.isfinite(found["nll"])
    assert found["brier"] == pytest.approx(2.0)
