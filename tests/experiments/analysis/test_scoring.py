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


def test_the_interval_of_runs_with_common_images_covers_the_truth():
    """Runs of one collection of images: what they have in common must not make the interval narrower."""
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(2000):
        gains = rng.choice([-1, 0, 1], 150, p=[0.1, 0.7, 0.2])
        images = np.concatenate([rng.permutation(150)[:100] for _ in range(3)])
        runs = np.repeat(np.arange(3), 100)
        found = scoring.repeated_difference(*map(torch.from_numpy, (gains[images], images, runs)))
        held += abs(found.points - 10) <= found.margin
    assert 0.93 <= held / 2000 <= 0.97


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
    assert found[3].images == 0
    overall = scoring.changes(torch.from_numpy(now), torch.from_numpy(before))
    assert overall.images == 400
    assert overall.repaired == sum(c.repaired for c in found)
    assert overall.broken == sum(c.broken for c in found)
    gain = 100 * (overall.repaired - overall.broken) / 400
    assert gain == pytest.approx(100 * (now.mean() - before.mean()))


def test_class_and_balanced_accuracy_against_a_plain_computation():
    correct, _, labels = outcomes(5, domains=4)
    labels[labels == 2] = 3  # a class that does not occur
    found = scoring.class_accuracies(torch.from_numpy(correct), torch.from_numpy(labels), 5)
    plain = [100 * correct[labels == c].mean() for c in (0, 1, 3)]
    assert [found[c] for c in (0, 1, 3)] == pytest.approx(plain)
    assert np.isnan([found[2], found[4]]).all()
    balanced = scoring.balanced_accuracy(torch.from_numpy(correct), torch.from_numpy(labels))
    assert balanced == pytest.approx(np.mean(plain))


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
    cooler = [max(np.exp(row / 4) / np.exp(row / 4).sum()) for row in logits.double().numpy()]
    assert scoring.confidences(logits, temperature=4).tolist() == pytest.approx(cooler)


def test_mean_and_deviation_over_seeds():
    values = [70.5, 71.25, 69.0, 72.0]
    spread = scoring.over_seeds(values)
    assert spread.mean == pytest.approx(np.mean(values))
    assert spread.deviation == pytest.approx(np.std(values, ddof=1))
    assert (spread.seeds, str(spread)) == (4, "70.69 ± 1.28")
    alone = scoring.over_seeds([70.5])
    assert (alone.deviation, str(alone)) == (None, "70.50")


YES, ONE = torch.tensor([True, False]), torch.tensor([True])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scoring.changes(YES, ONE), "correct 2, zero_shot 1"),
        (lambda: scoring.changes(YES.float(), YES), "correct must be a bool tensor, got torch.float32"),
        (lambda: scoring.domain_changes(YES, YES, torch.tensor([0, 2]), 2), "between 0 and 1, got 0 to 2"),
        (lambda: scoring.calibration_error(torch.tensor([0.5, 1.5]), YES), "between 0 and 1"),
        (lambda: scoring.calibration_error(torch.tensor([0.5, float("nan")]), YES), "between 0 and 1"),
        (lambda: scoring.calibration_error(torch.rand(2), YES, 0), "bins must be at least 1, got 0"),
        (lambda: scoring.calibration_error(torch.rand(0), YES[:0]), "at least one image"),
        (lambda: scoring.balanced_accuracy(YES, torch.tensor([0])), "correct 2, labels 1"),
        (lambda: scoring.confidences(torch.rand(2, 3), 0), "temperature must be finite and above 0"),
        (lambda: scoring.over_seeds([]), "values must hold one number"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
