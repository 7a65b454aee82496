"""Streams whose labels are correlated: their distribution, small cases by hand, plain constructions."""

import math

import numpy as np
import pytest

from ramen.data.streams.stream import make_stream
from ramen.utils.draws import Draws
from tests.data.streams.small_datasets import balanced, everything, pairs, runs


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


def test_correlated_domains():
    labels = balanced(3, 4, 25)
    successive = make_stream("correlated", labels, domains="successive")
    assert successive.domain.tolist() == [0] * 100 + [1] * 100 + [2] * 100
    assert successive.resets == ()
    again = make_stream("correlated", labels, domains="successive", reset=True)
    assert again.resets == (0, 100, 200)
    assert pairs(again) == pairs(successive)
    assert len(runs(successive.labels())) < 100


def slot_parts(labels, seed, slots, *, delta, at_least=0):
    """A plain construction of balanced slots, image by image; each slot is a list of runs."""
    draws, total = Draws(seed, "order"), len(labels)
    while True:
        filled = [[] for _ in range(slots)]
        for label in sorted(set(labels)):
            images = [i for i in range(total) if labels[i] == label]
            images = [images[i] for i in draws.permutation(len(images))]
            open_slots = [s for s in range(slots) if sum(map(len, filled[s])) < total / slots]
            shares = dict(zip(open_slots, draws.dirichlet(delta, len(open_slots)), strict=True))
            reached, start = 0.0, 0
            for slot in range(slots):
                reached += shares.get(slot, 0.0)
                end = len(images) if slot == slots - 1 else math.floor(reached * len(images) + 1e-9)
                filled[slot].append(images[start:end])
                start = end
        if all(sum(map(len, slot)) >= at_least for slot in filled):
            break
    return [[slot[i] for i in draws.permutation(len(slot))] for slot in filled]


@pytest.mark.parametrize("seed", range(4))
def test_balanced_slots_against_a_plain_construction(seed):
    labels = np.random.default_rng(seed).integers(0, 6, 90).tolist()
    parts = slot_parts(labels, seed, 6, delta=0.3, at_least=8)
    stream = make_stream(
        "correlated", [labels], seed, delta=0.3, slots="classes", balance=True, at_least=8, within="runs"
    )
    assert stream.index.tolist() == [i for slot in parts for run in slot for i in run]
    assert all(sum(map(len, slot)) >= 8 for slot in parts)


def test_every_slot_gets_enough_or_it_is_refused():
    labels = balanced(1, 10, 20)
    for seed in range(5):
        order = make_stream("note", labels, seed, delta=0.05)
        assert sorted(pairs(order)) == everything(labels)
    with pytest.raises(ValueError, match="at_least must be at most 20 for 200 images in 10 slots, got 21"):
        make_stream("note", labels, at_least=21)
    with pytest.raises(ValueError, match=r"at_least: in 1,000 draws, some of 40 slots .* raise delta=0.001"):
        make_stream("correlated", balanced(1, 2, 40), slots=40, at_least=2, delta=0.001)


@pytest.mark.parametrize(("classes", "each", "slots"), [(10, 100, 7), (5, 200, 5), (10, 5, 1)])
def test_slots_of_batches(classes, each, slots):
    """At most one per 128 images, at most one per class, at least one."""
    labels = balanced(1, classes, each)
    named, counted = (make_stream("correlated", labels, slots=count) for count in ("batches", slots))
    assert pairs(named) == pairs(counted)


def test_by_class():
    labels = balanced(3, 4, 5)
    stream = make_stream("by_class", labels)
    assert runs(stream.labels()).tolist() == [15] * 4
    assert len(runs(stream.domain)) > 20  # within a class, domains are mixed
    assert sorted(pairs(stream)) == everything(labels)
    orders = {tuple(make_stream("by_class", [[0, 1, 2]], s).labels()) for s in range(60)}
    assert len(orders) == 6
    ascending = make_stream("class_sorted", labels)
    assert ascending.labels().tolist() == [label for label in range(4) for _ in range(15)]
    apart = make_stream("by_class", labels, order="ascending", domains="successive", reset=True)
    assert apart.domain.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    assert apart.labels().tolist() == 3 * [label for label in range(4) for _ in range(5)]
    assert apart.resets == (0, 20, 40)
