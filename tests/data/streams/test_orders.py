"""The order of each protocol: its distribution, small cases by hand, plain constructions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen.data.streams.orders import long_tail
from ramen.data.streams.stream import make_stream
from ramen.utils.random_draws import Draws
from tests.data.streams.small_datasets import (
    balanced,
    data,
    pairs,
    runs,
    source,
)

PATH = [1, 2, 3, 2, 1]


def test_mixed_is_uniform():
    """Over many seeds each domain is as frequent at each place as it is in the data set."""
    labels = [[0] * 3, [0] * 2, [0]]
    counts = np.zeros((3, 6))
    for seed in range(1500):
        counts[make_stream("mixed", labels, seed).domain, np.arange(6)] += 1
    for domain, expected in enumerate((750, 500, 250)):
        assert counts[domain] == pytest.approx(expected, abs=4 * np.sqrt(expected))


@pytest.mark.parametrize("name", ["single", "continual"])
def test_domain_after_domain(name):
    labels = [[0] * 30, [0] * 20, [0] * 10]
    stream = make_stream(name, labels)
    assert stream.domain.tolist() == [0] * 30 + [1] * 20 + [2] * 10
    assert stream.resets == ((0, 30, 50) if name == "single" else ())
    assert stream.index[:30].tolist() != list(range(30))


def test_order_of_domains():
    labels = [[0] * 2, [0] * 2, [0] * 2]
    named = make_stream("continual", data(labels), order=["domain-2", "domain-0", "domain-1"])
    assert named.domain.tolist() == [2, 2, 0, 0, 1, 1]
    drawn = {tuple(make_stream("continual", labels, s, order="random").domain[::2]) for s in range(60)}
    assert len(drawn) == 6


def test_gradual_rises_and_falls():
    labels = [[0] * 10, [1] * 11]
    repeated = make_stream("gradual", source("gradual", labels))
    steps = [(0, s, 10) for s in PATH] + [(1, s, 11) for s in PATH]
    assert repeated.domain.tolist() == [d for d, _, n in steps for _ in range(n)]
    assert repeated.severity.tolist() == [s for _, s, n in steps for _ in range(n)]
    orders = []
    for start in range(0, 50, 10):
        orders.append(repeated.index[start : start + 10].tolist())
        assert sorted(orders[-1]) == list(range(10))
    assert len(set(map(tuple, orders))) == 5
    assert repeated.resets == ()
    disjoint = make_stream("gradual", source("gradual", labels), images="disjoint")
    assert disjoint.severity.tolist() == [1, 1, 2, 2, 3, 3, 2, 2, 1, 1, *[1, 1, 1, 2, 2, 3, 3, 2, 2, 1, 1]]


def test_gradual_sorts_the_severities():
    sets = {5: data([[0]]), 1: data([[0]]), 4: data([[0]])}
    stream = make_stream("gradual", sets)
    assert stream.severity.tolist() == [1, 4, 5, 4, 1]
    assert stream.dataset is sets[1]


def test_correlated_within_slots_comes_in_runs():
    """With one slot there is nothing to draw but the order of the classes."""
    stream = make_stream("correlated", balanced(classes=6), slots=1)
    assert runs(stream.labels()).tolist() == [80] * 6
    assert len(runs(stream.domain)) > 200  # within a class, domains are mixed
    orders = {tuple(make_stream("correlated", [[0, 1, 2]], s, slots=1).labels()) for s in range(60)}
    assert len(orders) == 6


@pytest.mark.parametrize("within", ["runs", "shuffled"])
@pytest.mark.parametrize("seed", range(4))
def test_correlated_against_a_plain_construction(seed, within):
    labels = np.random.default_rng(seed).integers(0, 5, 60).tolist()
    draws = Draws(seed, "order")
    slots = [[] for _ in range(6)]
    for label in range(5):
        images = [i for i in range(60) if labels[i] == label]
        images = [images[i] for i in draws.permutation(len(images))]
        total, start = 0.0, 0
        for slot, share in enumerate(draws.dirichlet(0.7, 6)):
            total += share
            end = len(images) if slot == 5 else math.floor(total * len(images) + 1e-9)
            slots[slot].append(images[start:end])
            start = end
    expected = []
    for slot in slots:
        content = slot if within == "runs" else [[image] for chunk in slot for image in chunk]
        for i in draws.permutation(len(content)):
            expected += content[i]
    stream = make_stream("correlated", [labels], seed, delta=0.7, slots=6, within=within)
    assert stream.index.tolist() == expected


def test_correlated_shares_follow_the_dirichlet():
    """Two classes, two slots: the first run is the leading class's share of the first slot, a beta number."""
    labels = [[0] * 500 + [1] * 500]
    streams = [make_stream("correlated", labels, seed, delta=2, slots=2) for seed in range(1500)]
    shares = np.array([runs(stream.labels())[0] for stream in streams]) / 500
    assert shares.mean() == pytest.approx(0.5, abs=0.02)
    assert shares.var() == pytest.approx(1 / 20, rel=0.12)


def test_one_slot_per_class_but_at_most_a_hundred():
    for classes, slots in ((7, 7), (130, 100)):
        labels = balanced(1, classes, 9)
        assert pairs(make_stream("correlated", labels)) == pairs(
            make_stream("correlated", labels, slots=slots)
        )


@pytest.mark.parametrize("whole", [1.0, 1 - 2**-53])
def test_proportions_that_nearly_add_up_leave_no_strays(monkeypatch, whole):
    """Each class is in the second of three slots."""
    monkeypatch.setattr(Draws, "dirichlet", lambda *_: np.array([0.0, whole, 0.0]))
    labels = make_stream("correlated", balanced(1, 10, 50), slots=3).labels()
    assert runs(labels).tolist() == [50] * 10


@pytest.mark.parametrize("delta", [0.01, 0.3, 100.0])
def test_correlated_follows_delta(delta):
    """The run of an image is as long as the sum of squared proportions says; few neighbouring runs merge."""
    lengths = []
    for seed in range(20):
        stream = make_stream("correlated", balanced(1, 10, 200), seed, delta=delta, slots=10)
        run = runs(stream.labels())
        lengths.append((run**2).sum() / run.sum())
    assert np.mean(lengths) == pytest.approx(200 * (delta + 1) / (10 * delta + 1), rel=0.1)


def test_a_large_delta_with_shuffled_slots_is_uncorrelated():
    labels = balanced(1, 10, 200)
    loose = make_stream("correlated", labels, delta=1e6, within="shuffled").labels()
    assert (loose[1:] == loose[:-1]).mean() == pytest.approx(0.1, abs=0.025)
    tight = make_stream("correlated", labels, delta=0.01, within="shuffled").labels()
    assert (tight[1:] == tight[:-1]).mean() > 0.3


def test_correlated_domains():
    labels = balanced(3, 4, 25)
    successive = make_stream("correlated", labels, domains="successive")
    assert successive.domain.tolist() == [0] * 100 + [1] * 100 + [2] * 100
    assert successive.resets == ()
    again = make_stream("correlated", labels, domains="successive", reset=True)
    assert again.resets == (0, 100, 200)
    assert pairs(again) == pairs(successive)
    assert len(runs(successive.labels())) < 100


def test_bursts_have_geometric_lengths():
    stream = make_stream("bursty", [[0] * 10_000] * 8, length=12)
    lengths = runs(stream.domain)[:-1]  # the last one takes what is left
    assert lengths.mean() == pytest.approx(12, rel=0.04)
    for size in (1, 2, 10):
        assert (lengths == size).mean() == pytest.approx((11 / 12) ** (size - 1) / 12, abs=0.01)
    assert (lengths > 30).mean() == pytest.approx((11 / 12) ** 30, abs=0.012)


def test_bursts_of_one_image_never_repeat_a_domain():
    domain = make_stream("bursty", [[0] * 300] * 5, length=1).domain
    assert (runs(domain)[:-5] == 1).all()


def test_bursts_use_all_domains_to_the_end():
    """All domains shrink at the same rate: in the last tenth of the stream all of them still occur."""
    stream = make_stream("bursty", [[0] * 4000, [0] * 4000, [0] * 2000], length=5)
    tail = np.bincount(stream.domain[-1000:], minlength=3)
    assert (tail > 100).all()
    head = np.bincount(stream.domain[:5000], minlength=3) / 5000
    assert head == pytest.approx([0.4, 0.4, 0.2], abs=0.05)


def test_imbalanced_classes_follow_the_profile():
    stream = make_stream("imbalanced", balanced(4, 11, 100), ratio=100)
    counts = np.bincount(stream.labels(), minlength=11)
    profile = [round(400 * 100 ** (-r / 10)) for r in range(11)]
    assert sorted(counts, reverse=True) == profile
    assert profile[0] == 100 * profile[-1]
    head = stream.domain[stream.labels() == counts.argmax()]
    assert np.bincount(head).tolist() == [100] * 4
    other = np.bincount(make_stream("imbalanced", balanced(4, 11, 100), 1, ratio=100).labels(), minlength=11)
    assert counts.argsort().tolist() != other.argsort().tolist()  # the seed ranks the classes


def test_imbalanced_domains():
    stream = make_stream("imbalanced", balanced(3, 2, 200), ratio=4, over="domains")
    assert sorted(np.bincount(stream.domain), reverse=True) == [400, 200, 100]
    rarest = stream.index[stream.domain == np.bincount(stream.domain).argmin()]
    assert rarest.mean() == pytest.approx(200, abs=35)  # drawn at random from the domain
    assert len(runs(stream.domain)) > 250  # and mixed


@pytest.mark.parametrize(
    ("available", "ratio", "expected"),
    [
        ([80, 80, 80], 4, [80, 40, 20]),
        ([80, 80, 80], 1, [80, 80, 80]),
        ([80, 30, 80], 4, [60, 30, 15]),
        ([10, 9, 1000], 100, [10, 1, 1]),
        ([3], 50, [3]),
        ([2, 2], 1000, [2, 1]),
    ],
)
def test_long_tail_by_hand(available, ratio, expected):
    assert long_tail(available, ratio) == expected


def test_halves_are_rounded_up_whatever_the_last_bit():
    """Ratios that are powers, so that each size has an exact value to compare with."""
    for base, groups, count in itertools.product((2, 4, 6, 10, 14), range(2, 8), range(1, 300, 2)):
        exact = [math.floor(Fraction(count, base**rank) + Fraction(1, 2)) for rank in range(groups)]
        assert long_tail([count] * groups, base ** (groups - 1)) == [max(1, size) for size in exact]


@given(available=st.lists(st.integers(1, 3000), min_size=1, max_size=30), ratio=st.floats(1, 1000))
@settings(max_examples=300, deadline=None)
def test_a_long_tail_never_needs_more_than_there_is(available, ratio):
    sizes = long_tail(available, ratio)
    assert all(1 <= size <= n for size, n in zip(sizes, available, strict=True))
    assert sizes == sorted(sizes, reverse=True)
    assert any(size == n or size == 1 for size, n in zip(sizes, available, strict=True))
