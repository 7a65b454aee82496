"""Pairs by similarity: against sorting all pairs, with and without ties, exact and drawn."""

import itertools

import numpy as np
import pytest
import torch

from ramen.experiments.studies import similarity_pairs
from ramen.experiments.studies.similarity_pairs import draw_pairs, exact_bins, sampled_bins
from ramen.utils.random_draws import Draws


def smooth(images=225, domains=3, classes=4, width=16, apart=1.0, seed=0):
    """Unit vectors without ties that lie together by domain."""
    rng = np.random.default_rng(seed)
    domain, label = rng.integers(domains, size=images), rng.integers(classes, size=images)
    centres = apart * rng.normal(size=(domains, width))
    vectors = centres[domain] + rng.normal(size=(images, width))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return torch.from_numpy(vectors).float(), torch.from_numpy(domain), torch.from_numpy(label)


def coarse(images, width=16, seed=0):
    """Unit vectors of ±1/4: similarities are multiples of 1/8 without rounding, so that most pairs tie."""
    rng = np.random.default_rng(seed)
    vectors = torch.from_numpy(rng.choice([-0.25, 0.25], (images, width))).float()
    domains, classes = (torch.from_numpy(rng.integers(count, size=images)) for count in (3, 2))
    return vectors, domains, classes


def sorted_pairs(embeddings, domains, chosen):
    """Similarities of all chosen pairs, falling, and whether each is of one domain."""
    vectors, domain = embeddings.numpy(), domains.tolist()
    found = [
        (vectors[i] @ vectors[j], domain[i] == domain[j])
        for i, j in itertools.combinations(range(len(vectors)), 2)
        if chosen(i, j)
    ]
    found.sort(key=lambda pair: -pair[0])
    return np.array([s for s, _ in found]), np.array([d for _, d in found], dtype=float)


def plain_shares(similarities, same, bins):
    """Every pair of equal similarity stands for the mean of its equals; a pair on an edge is split."""
    mean = np.array(same)
    for value in set(similarities[1:][similarities[1:] == similarities[:-1]]):
        mean[similarities == value] = same[similarities == value].mean()
    size = len(same) / bins
    shares = []
    for number in range(bins):
        begin, end = number * size, (number + 1) * size
        places = np.arange(len(same))
        covered = np.clip(np.minimum(places + 1, end) - np.maximum(places, begin), 0, 1)
        shares.append(100 * (covered * mean).sum() / size)
    return shares


@pytest.mark.parametrize("block", [1000, 64, 7])
def test_all_pairs_sorted(block):
    embeddings, domains, classes = smooth()
    found = exact_bins(embeddings, domains, classes, block=block)
    for name, chosen in (("all", lambda i, j: True), ("class", lambda i, j: bool(classes[i] == classes[j]))):
        similarities, same = sorted_pairs(embeddings, domains, chosen)
        bins = found[name]
        assert bins.pairs == len(same)
        assert bins.same_domain == pytest.approx(100 * same.mean())
        # a product that rounds otherwise may move a pair over an edge
        assert bins.shares == pytest.approx(plain_shares(similarities, same, 10), abs=100 * 10 / len(same))
        assert np.mean(bins.shares) == pytest.approx(bins.same_domain)
        ends = [similarities[max(int(np.ceil(k * len(same) / 10)) - 1, 0)] for k in range(11)]
        assert bins.edges == pytest.approx(ends, abs=1e-4)
    assert found["all"].shares[0] > 1.5 * found["all"].same_domain


@pytest.mark.parametrize(("images", "bins"), [(41, 10), (90, 10), (90, 7), (41, 1), (6, 6), (7, 20)])
def test_ties_take_their_fraction(images, bins):
    embeddings, domains, classes = coarse(images)
    found = exact_bins(embeddings, domains, classes, bins, block=16)
    for name, chosen in (("all", lambda i, j: True), ("class", lambda i, j: bool(classes[i] == classes[j]))):
        similarities, same = sorted_pairs(embeddings, domains, chosen)
        if len(same) < bins:
            assert found[name] is None
            continue
        assert len(np.unique(similarities)) < 20
        ends = [similarities[max(-(-k * len(same) // bins) - 1, 0)] for k in range(bins + 1)]
        assert found[name].edges == tuple(ends)
        assert found[name].shares == pytest.approx(plain_shares(similarities, same, bins), abs=1e-9)


def test_the_order_of_images_has_no_effect():
    embeddings, domains, classes = coarse(90)
    order = torch.from_numpy(np.random.default_rng(1).permutation(90))
    assert exact_bins(embeddings, domains, classes) == exact_bins(
        embeddings[order], domains[order], classes[order], block=17
    )


def test_images_that_are_all_alike():
    embeddings = torch.nn.functional.normalize(torch.ones(300, 5), dim=1)
    found = exact_bins(embeddings, torch.arange(300) % 2, torch.zeros(300, dtype=torch.int64), block=64)
    assert found["all"].shares == pytest.approx([found["all"].same_domain] * 10)
    assert found["class"] == found["all"]


def test_a_reading_without_pairs_and_too_few_images():
    embeddings, domains, _ = coarse(20)
    found = exact_bins(embeddings, domains, torch.arange(20))
    assert found["all"] is not None
    assert found["class"] is None
    assert sampled_bins(embeddings, domains, torch.arange(20), 100)["class"] is None
    with pytest.raises(ValueError, match="4 images have 6 pairs, too few for 10 bins"):
        exact_bins(embeddings[:4], domains[:4], domains[:4])
    embeddings[3, 2] = torch.nan
    with pytest.raises(ValueError, match="embeddings must be finite, got 1 of 20 that are not"):
        exact_bins(embeddings, domains, domains)


def test_passes_that_differ_are_an_error(monkeypatch):
    embeddings, domains, classes = smooth(60)
    looks = []
    block = similarity_pairs._Pairs._block

    def shaky(self, rows, columns):
        looks.append(rows)
        similarity, bucket, same, alike = block(self, rows, columns)
        return (
            (similarity, bucket, same, alike) if len(looks) == 1 else (similarity, bucket // 2, same, alike)
        )

    monkeypatch.setattr(similarity_pairs._Pairs, "_block", shaky)
    with pytest.raises(RuntimeError, match="similarities differ between the two passes"):
        exact_bins(embeddings, domains, classes)


def test_pairs_are_drawn_evenly():
    groups = np.array([0, 1, 0, 2, 1, 1, 0, 0, 3])
    left, right = draw_pairs(groups, 90_000, Draws(0, "test"))
    assert (left != right).all()
    assert (groups[left] == groups[right]).all()
    counts = {}
    for pair in zip(left.tolist(), right.tolist(), strict=True):
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 4 * 3 + 3 * 2  # every ordered pair of a group, none of a lone image
    assert np.array(list(counts.values())) == pytest.approx(5000, rel=0.06)
    again, _ = draw_pairs(groups, 90_000, Draws(0, "test"))
    assert np.array_equal(left, again)


def test_drawn_pairs_come_near_within_their_error():
    embeddings, domains, classes = smooth(150, apart=0.5)
    exact = exact_bins(embeddings, domains, classes)
    for name in similarity_pairs.READINGS:
        drawn = [sampled_bins(embeddings, domains, classes, 2000, seed=seed)[name] for seed in range(100)]
        shares = np.array([bins.shares for bins in drawn])
        errors = np.array([bins.errors for bins in drawn]).mean(0)
        assert shares.mean(0) == pytest.approx(exact[name].shares, abs=1.5)
        assert shares.std(0) == pytest.approx(errors, rel=0.35)
        assert np.mean(shares.std(0) / errors) == pytest.approx(1, abs=0.1)
    assert sampled_bins(embeddings, domains, classes, 500) == sampled_bins(embeddings, domains, classes, 500)
    assert sampled_bins(embeddings, domains, classes, 500) != sampled_bins(
        embeddings, domains, classes, 500, seed=1
    )


@pytest.mark.gpu
def test_pairs_on_a_gpu():
    for given in (coarse(90), smooth(3000)):
        on_gpu = exact_bins(*(tensor.cuda() for tensor in given), block=500)
        for name, bins in exact_bins(*given).items():
            assert on_gpu[name].pairs == bins.pairs
            assert on_gpu[name].shares == pytest.approx(bins.shares, abs=0.05)
