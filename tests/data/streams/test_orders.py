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
from ramen.utils.draws import Draws
from tests.data.streams.small_datasets import balanced, data, pairs, runs, source

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


def plain_rounds(labels, seed, rounds, repeated, reorder):
    """Domain and index of each image, one after the other."""
    draws = Draws(seed, "order")
    places = draws.permutation(len(labels)).tolist()
    parts = {}
    if not repeated:
        for domain, values in enumerate(labels):
            left = draws.permutation(len(values)).tolist()
            for number in range(rounds):  # the first parts take one more of what is left over
                size = len(values) // rounds + (number < len(values) % rounds)
                parts[domain, number], left = left[:size], left[size:]
    shown = []
    for number in range(rounds):
        if reorder and number:
            places = draws.permutation(len(labels)).tolist()
        for domain in places:
            own = draws.permutation(len(labels[domain])) if repeated else parts[domain, number]
            shown += [(domain, int(i)) for i in own]
    return shown


@pytest.mark.parametrize("reorder", [False, True])
@pytest.mark.parametrize("images", ["repeated", "disjoint"])
def test_cyclic_against_a_plain_construction(images, reorder):
    labels = [[0] * 10, [1] * 7, [0] * 2]
    stream = make_stream("cyclic", labels, 5, rounds=4, images=images, order="random", reorder=reorder)
    assert pairs(stream) == plain_rounds(labels, 5, 4, images == "repeated", reorder)


def test_every_round_shows_every_domain():
    labels = [[0] * 40, [1] * 30, [0] * 20]
    stream = make_stream("cyclic", labels)
    assert stream.rounds == tuple(range(0, 90, 9))
    assert stream.domain.tolist() == 10 * ([0] * 4 + [1] * 3 + [2] * 2)
    again = make_stream("continual_rounds", labels, rounds=3, limit=200)
    assert again.rounds == (0, 90, 180)
    assert again.domain.tolist() == (3 * ([0] * 40 + [1] * 30 + [2] * 20))[:200]
    assert make_stream("cyclic", labels, limit=9).rounds == (0,)
    drawn = make_stream("cyclic", labels, order="random", reorder=True)
    orders = {tuple(dict.fromkeys(drawn.domain[start : start + 9].tolist())) for start in drawn.rounds}
    assert len(orders) > 1


def test_bursts_have_geometric_lengths():
    stream = make_stream("bursty", [[0] * 10_000] * 8, length=12)
    lengths = runs(stream.domain)[:-1]  # the last one takes what is left
    assert lengths.mean() == pytest.approx(12, rel=0.04)
    for size in (1, 2, 10):
        assert (lengths == size).mean() == pytest.approx((11 / 12) ** (size - 1) / 12, abs=0.01)
    assert (lengths > 30).mean() == pytest.approx((11 / 12) ** 30, abs=0.012)


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
