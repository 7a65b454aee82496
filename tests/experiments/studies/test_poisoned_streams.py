"""Streams with an attacker: the others' images stay as they are, and are never the attacker's."""

import numpy as np
import pytest
import torch

from ramen import testing
from ramen.data.registry import load
from ramen.data.streams.stream import make_stream
from ramen.experiments.studies.poisoned_streams import attacker_places, hold_out, part_of, poisoned_batches


@pytest.fixture(scope="module")
def data():
    return load("tiny", domains=["fog", "neon"], pictures=15)


@pytest.fixture(scope="module")
def classifier():
    return testing.small_classifier()


@pytest.fixture(scope="module")
def poison():
    return torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, 32, 32)


@pytest.mark.parametrize("protocol", ["mixed", "single"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_benign_images_and_their_order_are_the_same(data, classifier, poison, protocol, share):
    stream = make_stream(protocol, data)
    expected = classifier.preprocess(stream.read(slice(0, 30)))
    places = attacker_places(30, share, seed=0)
    batches = list(poisoned_batches(classifier, stream, poison, places, 7))
    assert torch.equal(torch.cat([part.images[part.benign] for part in batches]), expected)
    sent = torch.cat([part.images[~part.benign] for part in batches])
    repeated = [number % 4 for number in range(len(sent))]
    assert torch.equal(sent, classifier.preprocess(poison)[repeated])
    assert torch.equal(torch.cat([~part.benign for part in batches]), torch.from_numpy(places))


def test_resets_come_before_the_same_benign_image(data, classifier, poison):
    stream = make_stream("single", data)
    assert stream.resets == (0, 15)
    batches = list(poisoned_batches(classifier, stream, poison, attacker_places(30, 0.5, seed=0), 4))
    (first, second) = (number for number, part in enumerate(batches) if part.reset)
    assert first == 0
    assert sum(int(part.benign.sum()) for part in batches[:second]) == 15
    assert bool(batches[second].benign[0])
    assert all(len(part.images) <= 4 for part in batches)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.1, 11), (0.2, 25), (0.5, 100)])
def test_share_of_the_whole_stream(share, count):
    places = attacker_places(100, share, seed=0)
    assert (len(places), places.sum()) == (100 + count, count)
    assert np.array_equal(places, attacker_places(100, share, seed=0))
    if count:
        assert not np.array_equal(places, attacker_places(100, share, seed=1))
        assert abs(np.flatnonzero(places).mean() / len(places) - 0.5) < 0.2  # all over the stream


def test_held_out_images_are_nobody_elses(data):
    """Image 3 of one domain may be the photo of image 3 of the other: both are on one side."""
    stream = make_stream("mixed", data)
    benign, attacker = hold_out(stream, 7)
    assert len(attacker) == 8  # whole numbers, of which each is in both domains
    assert len(benign) + len(attacker) == len(stream)
    assert not set(benign.index) & set(attacker.index)
    kept = ~np.isin(stream.index, attacker.index)
    assert np.array_equal(benign.index, stream.index[kept])
    assert np.array_equal(benign.domain, stream.domain[kept])


def test_part_of_a_stream_with_severities():
    severities = {level: load("tiny", domains=["fog"], pictures=6) for level in (1, 2)}
    stream = make_stream("gradual", severities)
    part = part_of(stream, np.array([0, 7, 8]))
    assert stream.severity is not None
    assert part.severity.tolist() == stream.severity[[0, 7, 8]].tolist()
    assert torch.equal(part.read(slice(1, 2)), stream.read(slice(7, 8)))


def test_bad_input(data):
    with pytest.raises(ValueError, match="share must be below 1, got 1"):
        attacker_places(10, 1.0, 0)
    with pytest.raises(ValueError, match="images must leave some of the stream's 30 to others, got 29"):
        hold_out(make_stream("mixed", data), 29)
