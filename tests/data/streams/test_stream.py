"""What all streams share: seeds, limits, batches, reading, identity, bad arguments."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen.data.dataset import Dataset, Domain
from ramen.data.streams import ALIASES, PROTOCOLS, find_protocol, make_stream
from tests.data.streams.small_datasets import (
    SEVERITIES,
    Files,
    Numbered,
    balanced,
    data,
    everything,
    pairs,
    source,
)

TWO = [[0, 1], [1]]
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
        ("correlated", {"slots": "batches", "balance": True}),
        ("by_class", {}),
        ("by_class", {"order": "ascending", "domains": "successive"}),
        ("cyclic", {"rounds": 3, "images": "disjoint"}),
        ("cyclic", {"images": "disjoint", "order": "random", "reorder": True}),
        ("bursty", {"length": 1}),
        ("bursty", {"length": 3.5}),
        ("imbalanced", {"ratio": 4.0}),
        ("imbalanced", {"over": "domains"}),
    ]
)
# Hashes of the orders when they were first made: they must never change, on any machine, with any NumPy.
GOLDEN = {
    "mixed": "980b2fa4ab1f4a0b",
    "single": "cc5ca55937c94b68",
    "continual": "2fff81f6e0bcc442",
    "gradual": "b6758614194139a2",
    "correlated": "bf6ed1c3cdb2e25c",
    "by_class": "3fb5cf96f2613b58",
    "cyclic": "cd9e0c09c6fa09d8",
    "bursty": "7b476d5403742e9e",
    "imbalanced": "9e19dcf8e024b59c",
}


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


@given(labels=some_labels, variant=all_variants, seed=st.integers(0, 2**40))
@settings(max_examples=300, deadline=None)
def test_every_protocol_uses_an_image_at_most_once(labels, variant, seed):
    name, parameters = variant
    stream = make_stream(name, source(name, labels), seed, **parameters)
    used = pairs(stream)
    assert len(set(used)) == len(used) == len(stream)
    if PROTOCOLS[name].exhaustive or parameters.get("images") == "disjoint":
        assert sorted(used) == everything(labels)
    else:
        assert set(used) <= set(everything(labels))
    assert stream.labels().tolist() == [labels[d][i] for d, i in used]


def test_the_subsample_of_a_domain_is_random_and_independent_of_the_others():
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


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_seed_determines_the_order(name):
    labels = balanced()
    first, again, other = (make_stream(name, source(name, labels), seed) for seed in (1, 1, 2))
    assert pairs(first) == pairs(again)
    assert first.identity() == again.identity()
    assert pairs(first) != pairs(other)
    assert first.identity()["order"] != other.identity()["order"]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_orders_never_change(name):
    assert set(PROTOCOLS) == set(GOLDEN)
    order = make_stream(name, source(name, balanced()), 7, per_domain=90).identity()["order"]
    assert order.startswith(f"sha256:{GOLDEN[name]}")


def test_identity_is_plain_and_complete():
    given = {"seed": np.int64(4), "delta": np.float64(0.5), "slots": 3, "limit": np.int64(2)}
    stream = make_stream("correlated", data([[0, 1], [1]]), **given)
    identity = json.loads(json.dumps(stream.identity(), allow_nan=False))
    assert identity["parameters"]["delta"] == 0.5
    assert set(identity["parameters"]) == {*PROTOCOLS["correlated"].parameters, "limit", "per_domain"}
    assert (identity["seed"], identity["dataset"], identity["pictures"]) == (4, "set", 2)
    assert identity["domains"] == ["domain-0", "domain-1"]
    assert len(identity["order"]) == len("sha256:") + 64
    named = make_stream("continual", data([[0], [1]]), order=("domain-1", "domain-0"))
    assert json.dumps(named.identity()["parameters"]["order"]) == '["domain-1", "domain-0"]'
    gradual = make_stream("gradual", source("gradual", [[0]]))
    assert gradual.identity()["severities"] == [1, 2, 3]


def test_nothing_can_be_changed():
    stream = make_stream("gradual", source("gradual", [[0, 1]]))
    for array in (stream.domain, stream.index, stream.severity):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        stream.seed = 1
    with pytest.raises(TypeError):
        stream.parameters["limit"] = 1
    assert repr(stream) == "Stream('gradual', 'set', seed=0, images=10)"


def test_read_keeps_the_order_of_the_stream():
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


def test_read_files_and_tensors_together():
    files = Domain("files", np.zeros(3, dtype=np.int64), Files())
    stream = make_stream("mixed", Dataset("x", ("a",), (files,)))
    assert stream.read(slice(0, 3)) == [Path(f"{i}.png") for i in stream.index]
    arrays = Domain("arrays", np.zeros(3, dtype=np.int64), Numbered(0))
    both = make_stream("mixed", Dataset("x", ("a",), (files, arrays)))
    found = both.read(slice(0, 6))
    for image, domain, index in zip(found, both.domain, both.index, strict=True):
        if domain == 0:
            assert image == Path(f"{index}.png")
        else:
            assert image.tolist() == torch.full((3, 2, 2), index).tolist()
    with pytest.raises(ValueError, match="made from labels only"):
        make_stream("mixed", [[0]]).read(slice(0, 1))


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_is_the_protocol_with_its_parameters(name):
    alias = ALIASES[name]
    labels = balanced(each=30)
    short = make_stream(name, source(alias.protocol, labels), 3)
    long = make_stream(alias.protocol, source(alias.protocol, labels), 3, **alias.parameters)
    assert short.identity() == long.identity()
    assert find_protocol(name) is PROTOCOLS[alias.protocol]
    assert not set(ALIASES) & set(PROTOCOLS)


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("mixd", {}, "mixd"),
        ("noniid", {}, "non_iid"),
        ("mixed", {"lenght": 3}, "lenght"),
        ("non_iid", {"gamma": 1}, "gamma"),
        ("mixed", {"seed": -1}, "seed"),
        ("mixed", {"seed": 0.5}, "seed"),
        ("mixed", {"limit": 0}, "limit"),
        ("mixed", {"per_domain": 0}, "per_domain"),
        ("bursty", {"length": 0.5}, "length"),
        ("correlated", {"delta": 0}, "delta"),
        ("correlated", {"slots": 0}, "slots"),
        ("correlated", {"slots": "x"}, "slots"),
        ("correlated", {"at_least": -1}, "at_least"),
        ("correlated", {"balance": 1}, "balance"),
        ("by_class", {"order": "x"}, "order"),
        ("by_class", {"reset": True}, "reset"),
        ("correlated", {"within": "x"}, "within"),
        ("correlated", {"domains": "x"}, "domains"),
        ("correlated", {"reset": 1}, "reset"),
        ("cyclic", {"rounds": 0}, "rounds"),
        ("cyclic", {"images": "x"}, "images"),
        ("cyclic", {"reorder": True}, "reorder"),
        ("imbalanced", {"ratio": 0.5}, "ratio"),
        ("imbalanced", {"over": "x"}, "over"),
        ("continual", {"order": "x"}, "order"),
        ("continual", {"order": ["0", "2"]}, "'2'"),
        ("continual", {"order": ["0", "0", "1"]}, "'0'"),
        ("continual", {"order": ["1"]}, "0 missing"),
        ("mixed", {"dataset": []}, "dataset"),
        ("mixed", {"dataset": [[], []]}, "dataset"),
        ("mixed", {"dataset": [[0], [-1]]}, "domain 1"),
        ("mixed", {"dataset": [[0.5]]}, "domain 0"),
        ("mixed", {"dataset": 3}, "dataset"),
        ("mixed", {"dataset": {1: data(TWO)}}, "dataset"),
        ("gradual", {}, "dataset"),
        ("gradual", {"dataset": data(TWO)}, "dataset"),
        ("gradual", {"dataset": {1: data(TWO)}}, "dataset"),
        ("gradual", {"dataset": {1: data(TWO), "2": data(TWO)}}, "severity"),
        ("gradual", {"dataset": {1: data(TWO), 2: data([[0, 1], [2]])}}, "classes"),
        ("gradual", {"dataset": {1: data(TWO), 2: data([[0, 1]])}}, "domains"),
        ("gradual", {"dataset": {1: data(TWO), 2: data([[1, 0], [1]])}}, "domain-0"),
        ("gradual", {"dataset": {1: data(TWO), 2: data(TWO)}, "images": "x"}, "images"),
    ],
)
def test_bad_input(name, arguments, named):
    with pytest.raises((ValueError, TypeError), match=named):
        make_stream(name, **({"dataset": TWO} | arguments))


@pytest.mark.parametrize("size", [0, 2.5])
def test_bad_batches(size):
    with pytest.raises((ValueError, TypeError), match="size"):
        make_stream("mixed", TWO).batches(size)
