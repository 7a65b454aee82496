"""Streams: properties of every protocol, the laws of each, small cases by hand, bad parameters."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen.data.dataset import Dataset, Domain
from ramen.data.streams.orders import long_tail
from ramen.data.streams.stream import PROTOCOLS, make_stream
from ramen.utils.random_draws import Draws

ONE_SET = sorted(name for name, protocol in PROTOCOLS.items() if not protocol.severities)
SEVERITIES = (1, 2, 3)
PATH = [1, 2, 3, 2, 1]


class Numbered:
    """Pictures whose pixels say which they are."""

    def __init__(self, mark):
        self.mark = mark

    def read(self, numbers):
        return torch.stack([torch.full((3, 2, 2), self.mark + n, dtype=torch.uint8) for n in numbers])


class Files:
    def read(self, numbers):
        return [Path(f"{n}.png") for n in numbers]


def data(labels, mark=0, name="set"):
    """A data set with a domain for each list of labels."""
    count = max((max(values) for values in labels if values), default=0) + 1
    domains = tuple(
        Domain(f"domain-{i}", np.array(values, dtype=np.int64), Numbered(mark + 20 * i))
        for i, values in enumerate(labels)
    )
    return Dataset(name, tuple(f"class-{c}" for c in range(count)), domains)


def source(name, labels):
    """What the protocol is made from."""
    return (
        {s: data(labels, 100 * s % 256) for s in SEVERITIES} if PROTOCOLS[name].severities else data(labels)
    )


def pairs(stream):
    return list(zip(stream.domain.tolist(), stream.index.tolist(), strict=True))


def everything(labels):
    return [(d, i) for d, values in enumerate(labels) for i in range(len(values))]


def runs(values):
    """Lengths of the runs of equal values."""
    edges = np.flatnonzero(np.diff(values)) + 1
    return np.diff([0, *edges, len(values)])


def balanced(domains=4, classes=5, each=20):
    return [list(np.repeat(np.arange(classes), each)) for _ in range(domains)]


some_labels = st.lists(st.lists(st.integers(0, 4), max_size=15), min_size=1, max_size=4).filter(any)
all_variants = st.sampled_from(
    [
        ("mixed", {}),
        ("single", {}),
        ("continual", {}),
        ("continual", {"order": "random"}),
        ("gradual", {"images": "disjoint"}),
        ("correlated", {}),
        ("correlated", {"delta": 3.0, "slots": 7, "within": "shuffled"}),
        ("correlated", {"domains": "successive", "reset": True}),
        ("bursty", {"length": 1}),
        ("bursty", {"length": 3.5}),
        ("imbalanced", {"ratio": 4.0}),
        ("imbalanced", {"over": "domains"}),
    ]
)


@given(labels=some_labels, variant=all_variants, seed=st.integers(0, 2**40))
@settings(max_examples=300, deadline=None)
def test_every_protocol_uses_a_picture_once_at_most(labels, variant, seed):
    name, parameters = variant
    stream = make_stream(name, source(name, labels), seed, **parameters)
    used = pairs(stream)
    assert len(set(used)) == len(used) == len(stream)
    if PROTOCOLS[name].exhaustive or parameters.get("images") == "disjoint":
        assert sorted(used) == everything(labels)
    else:
        assert set(used) <= set(everything(labels))
    assert stream.labels().tolist() == [labels[d][i] for d, i in used]


@given(
    labels=some_labels,
    variant=all_variants,
    seed=st.integers(0, 99),
    limit=st.integers(1, 40),
    per_domain=st.integers(1, 8),
)
@settings(max_examples=200, deadline=None)
def test_limit_and_per_domain(labels, variant, seed, limit, per_domain):
    name, parameters = variant
    whole = make_stream(name, source(name, labels), seed, per_domain=per_domain, **parameters)
    cut = make_stream(name, source(name, labels), seed, per_domain=per_domain, limit=limit, **parameters)
    assert pairs(cut) == pairs(whole)[:limit]
    assert cut.resets == tuple(r for r in whole.resets if r < limit)
    sizes = np.bincount(whole.domain, minlength=len(labels))
    full = [min(per_domain, len(values)) for values in labels]
    assert (sizes <= full).all()
    if PROTOCOLS[name].exhaustive:
        assert sizes.tolist() == full
        mixed = make_stream("mixed", data(labels), seed, per_domain=per_domain)
        assert sorted(pairs(whole)) == sorted(pairs(mixed))  # the same subsample for every protocol


def test_a_domain_s_subsample_is_random_and_does_not_depend_on_the_others():
    one = Domain("one", np.zeros(1000, dtype=np.int64), Files())
    other = Domain("other", np.zeros(1000, dtype=np.int64), Files())
    both = make_stream("single", Dataset("x", ("a",), (other, one)), 3, per_domain=200)
    alone = make_stream("single", Dataset("x", ("a",), (one,)), 3, per_domain=200)
    chosen = set(alone.index.tolist())
    assert chosen == set(both.index[both.domain == 1].tolist()) != set(both.index[both.domain == 0].tolist())
    assert np.mean(list(chosen)) == pytest.approx(499.5, abs=65)
    assert max(chosen) > 900


@given(
    labels=some_labels,
    name=st.sampled_from(["mixed", "single"]),
    size=st.integers(1, 12),
    limit=st.none() | st.integers(1, 30),
)
@settings(max_examples=200, deadline=None)
def test_batches_cover_the_stream_and_stop_at_resets(labels, name, size, limit):
    stream = make_stream(name, labels, limit=limit)
    batches = stream.batches(size)
    covered = [i for b in batches for i in range(b.start, b.stop)]
    assert covered == list(range(len(stream)))
    assert set(stream.resets) <= {b.start for b in batches}
    ends = {*stream.resets, len(stream)}
    for b in batches:
        assert 0 < b.stop - b.start <= size
        assert b.stop - b.start == size or b.stop in ends
    kept = stream.batches(size, drop_last=True)
    assert kept == [b for b in batches if b.stop - b.start == size]


def test_batches_by_hand():
    stream = make_stream("single", [[0] * 5, [], [0] * 2, [0] * 4])
    assert stream.resets == (0, 5, 7)
    found = [(b.start, b.stop) for b in stream.batches(2)]
    assert found == [(0, 2), (2, 4), (4, 5), (5, 7), (7, 9), (9, 11)]
    assert [(b.start, b.stop) for b in make_stream("mixed", [[0] * 5]).batches(2)] == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_seed_decides(name):
    labels = balanced()
    first, again, other = (make_stream(name, source(name, labels), seed) for seed in (1, 1, 2))
    assert pairs(first) == pairs(again)
    assert first.identity() == again.identity()
    assert pairs(first) != pairs(other)
    assert first.identity()["order"] != other.identity()["order"]


# What the orders were when they were first made: they stay so on every machine and with every NumPy.
GOLDEN = {
    "mixed": "980b2fa4ab1f4a0b",
    "single": "cc5ca55937c94b68",
    "continual": "2fff81f6e0bcc442",
    "gradual": "b6758614194139a2",
    "correlated": "bf6ed1c3cdb2e25c",
    "bursty": "7b476d5403742e9e",
    "imbalanced": "9e19dcf8e024b59c",
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_orders_stay_as_they_were(name):
    order = make_stream(name, source(name, balanced()), 7, per_domain=90).identity()["order"]
    assert order.startswith(f"sha256:{GOLDEN[name]}")


def test_identity_is_plain_and_complete():
    stream = make_stream(
        "correlated", data([[0, 1], [1]]), seed=np.int64(4), delta=np.float64(0.5), slots=3, limit=np.int64(2)
    )
    identity = json.loads(json.dumps(stream.identity(), allow_nan=False))
    order = identity.pop("order")
    assert identity == {
        "protocol": "correlated",
        "parameters": {
            "delta": 0.5,
            "slots": 3,
            "within": "runs",
            "domains": "mixed",
            "reset": False,
            "limit": 2,
            "per_domain": None,
        },
        "seed": 4,
        "dataset": "set",
        "domains": ["domain-0", "domain-1"],
        "severities": [],
        "pictures": 2,
        "resets": [],
    }
    assert len(order) == len("sha256:") + 64
    named = make_stream("continual", data([[0], [1]]), order=("domain-1", "domain-0"))
    assert json.dumps(named.identity()["parameters"]["order"]) == '["domain-1", "domain-0"]'
    gradual = make_stream("gradual", source("gradual", [[0]]))
    assert gradual.identity()["severities"] == [1, 2, 3]


def test_the_hash_tells_resets_and_severities_apart():
    labels = [[0], [0]]
    single, continual = (make_stream(name, labels).identity() for name in ("single", "continual"))
    assert single["order"] != continual["order"]
    low, high = ({s: data(labels) for s in keys} for keys in ((1, 2), (2, 3)))
    assert make_stream("gradual", low).identity()["order"] != make_stream("gradual", high).identity()["order"]


def test_nothing_can_be_changed():
    stream = make_stream("gradual", source("gradual", [[0, 1]]))
    for array in (stream.domain, stream.index, stream.severity):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        stream.seed = 1
    with pytest.raises(TypeError):
        stream.parameters["limit"] = 1
    assert repr(stream) == "Stream('gradual', 'set', seed=0, pictures=10)"


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


def test_gradual_takes_the_severities_it_is_given_in_rising_order():
    sets = {5: data([[0]]), 1: data([[0]]), 4: data([[0]])}
    stream = make_stream("gradual", sets)
    assert stream.severity.tolist() == [1, 4, 5, 4, 1]
    assert stream.dataset is sets[1]


def test_read_puts_pictures_in_their_places():
    labels = [[0] * 6, [1] * 5]
    stream = make_stream("mixed", data(labels))
    batch = stream.batches(7)[0]
    pixels = stream.read(batch)
    assert pixels.shape == (7, 3, 2, 2)
    assert pixels[:, 0, 0, 0].tolist() == [20 * d + i for d, i in pairs(stream)[:7]]
    gradual = make_stream("gradual", {s: data(labels, 40 * s) for s in SEVERITIES})
    for batch in gradual.batches(9):
        expected = 40 * gradual.severity[batch] + 20 * gradual.domain[batch] + gradual.index[batch]
        assert gradual.read(batch)[:, 0, 0, 0].tolist() == expected.tolist()


def test_read_files_and_what_cannot_be_read_together():
    files = Domain("files", np.zeros(3, dtype=np.int64), Files())
    stream = make_stream("mixed", Dataset("x", ("a",), (files,)))
    assert stream.read(slice(0, 3)) == [Path(f"{i}.png") for i in stream.index]
    arrays = Domain("arrays", np.zeros(3, dtype=np.int64), Numbered(0))
    both = make_stream("mixed", Dataset("x", ("a",), (files, arrays)))
    with pytest.raises(ValueError, match=r"must be alike to be read together, got \(3, 2, 2\), a file"):
        both.read(slice(0, 6))
    with pytest.raises(ValueError, match="made of labels alone"):
        make_stream("mixed", [[0]]).read(slice(0, 1))


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
        pictures = [i for i in range(60) if labels[i] == label]
        pictures = [pictures[i] for i in draws.permutation(len(pictures))]
        total, start = 0.0, 0
        for slot, share in enumerate(draws.dirichlet(0.7, 6)):
            total += share
            end = len(pictures) if slot == 5 else math.floor(total * len(pictures) + 1e-9)
            slots[slot].append(pictures[start:end])
            start = end
    expected = []
    for slot in slots:
        content = slot if within == "runs" else [[picture] for chunk in slot for picture in chunk]
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


def test_slots_are_one_a_class_and_a_hundred_at_most():
    for classes, slots in ((7, 7), (130, 100)):
        labels = balanced(1, classes, 9)
        assert pairs(make_stream("correlated", labels)) == pairs(
            make_stream("correlated", labels, slots=slots)
        )


@pytest.mark.parametrize("whole", [1.0, 1 - 2**-53])
def test_proportions_that_nearly_add_up_leave_no_strays(monkeypatch, whole):
    """Each class lies in the second of three slots."""
    monkeypatch.setattr(Draws, "dirichlet", lambda *_: np.array([0.0, whole, 0.0]))
    labels = make_stream("correlated", balanced(1, 10, 50), slots=3).labels()
    assert runs(labels).tolist() == [50] * 10


@pytest.mark.parametrize("delta", [0.01, 0.3, 100.0])
def test_correlated_follows_delta(delta):
    """A picture's run is as long as the sum of squared proportions says; few neighbouring runs merge."""
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


def test_bursts_of_one_picture_never_repeat_a_domain():
    domain = make_stream("bursty", [[0] * 300] * 5, length=1).domain
    assert (runs(domain)[:-5] == 1).all()


def test_bursts_leave_no_domain_behind():
    """What is left of each domain falls alike: in the last tenth all domains still come."""
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
def test_a_long_tail_never_asks_for_more_than_there_is(available, ratio):
    sizes = long_tail(available, ratio)
    assert all(1 <= size <= n for size, n in zip(sizes, available, strict=True))
    assert sizes == sorted(sizes, reverse=True)
    assert any(size == n or size == 1 for size, n in zip(sizes, available, strict=True))


def test_every_protocol_has_a_sentence():
    for name, protocol in PROTOCOLS.items():
        assert protocol.name == name
        assert protocol.description.endswith(".")
        assert str(protocol).startswith(f"{name}: ")
    assert set(PROTOCOLS) == set(GOLDEN)


TWO = [[0, 1], [1]]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("mixd", {}, "there is no protocol 'mixd'; did you mean 'mixed'"),
        ("mixed", {"lenght": 3}, "protocol 'mixed' has no parameter 'lenght'.* Valid: limit, per_domain"),
        ("bursty", {"lenght": 3}, "no parameter 'lenght'; did you mean 'length'"),
        ("mixed", {"seed": -1}, "seed must be at least 0, got -1"),
        ("mixed", {"seed": 0.5}, "seed must be a whole number, got float"),
        ("mixed", {"limit": 0}, "limit must be at least 1, got 0"),
        ("mixed", {"per_domain": 0}, "per_domain must be at least 1, got 0"),
        ("bursty", {"length": 0.5}, "length must be finite and at least 1, got 0.5"),
        ("correlated", {"delta": 0}, "delta must be finite and above 0, got 0"),
        ("correlated", {"slots": 0}, "slots must be at least 1, got 0"),
        ("correlated", {"within": "x"}, "within must be one of 'runs', 'shuffled', got 'x'"),
        ("correlated", {"domains": "x"}, "domains must be one of 'mixed', 'successive', got 'x'"),
        ("correlated", {"reset": True}, "reset must be False where"),
        ("correlated", {"reset": 1}, "reset must be True or False"),
        ("imbalanced", {"ratio": 0.5}, "ratio must be finite and at least 1, got 0.5"),
        ("imbalanced", {"over": "x"}, "over must be one of 'classes', 'domains', got 'x'"),
        ("continual", {"order": "x"}, "order must be one of 'random', got 'x'"),
        ("continual", {"order": ["0", "2"]}, "order: there is no domain '2'.* Valid: 0, 1"),
        ("continual", {"order": ["0", "0", "1"]}, "order must name each domain once, got '0' 2 times"),
        ("continual", {"order": ["1"]}, "order must name each domain once, 0 missing"),
        ("mixed", {"dataset": []}, "dataset: labels has no pictures"),
        ("mixed", {"dataset": [[], []]}, "has no pictures"),
        ("mixed", {"dataset": [[0], [-1]]}, "labels of domain 1 must be whole numbers"),
        ("mixed", {"dataset": [[0.5]]}, "labels of domain 0 must be whole numbers"),
        ("mixed", {"dataset": 3}, "dataset must be a Dataset or the labels of each domain, got int"),
        ("mixed", {"dataset": {1: data(TWO)}}, "protocol 'mixed' needs one data set, got a mapping"),
        ("gradual", {}, "needs a mapping from severity to data set.* got list"),
        ("gradual", {"dataset": data(TWO)}, "needs a mapping from severity to data set.* got Dataset"),
        ("gradual", {"dataset": {1: data(TWO)}}, "needs two severities or more, got 1"),
        ("gradual", {"dataset": {1: data(TWO), "2": data(TWO)}}, "severity must be a whole number"),
        (
            "gradual",
            {"dataset": {1: data(TWO), 2: data([[0, 1], [2]])}},
            "severity 2 must have the same classes as severity 1",
        ),
        (
            "gradual",
            {"dataset": {1: data(TWO), 2: data([[0, 1]])}},
            r"severity 2 must have the same domains .*got \['domain-0'\]",
        ),
        (
            "gradual",
            {"dataset": {1: data(TWO), 2: data([[1, 0], [1]])}},
            "severity 2 must have the same labels as severity 1 in domain 'domain-0'",
        ),
        ("gradual", {"dataset": {1: data(TWO), 2: data(TWO)}, "images": "x"}, "images must be one of"),
    ],
)
def test_bad_input(name, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_stream(name, **({"dataset": TWO} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "size must be at least 1, got 0"), ((2.5,), "size must be a whole number, got float")],
)
def test_bad_batches(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_stream("mixed", TWO).batches(*arguments)
