"""The streams of the study of harm."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ramen.data.dataset import Dataset, Domain
from ramen.data.streams.stream import make_stream
from ramen.experiments.studies.harm_streams import HarmImages


class Pixels:
    def __init__(self, domain):
        self.domain = domain

    def read(self, indices):
        return torch.full((len(indices), 3, 4, 4), self.domain, dtype=torch.uint8)


def dataset(names=("fog", "clean", "neon"), each=600, classes=5):
    labels = np.arange(each) % classes
    domains = tuple(Domain(name, labels, Pixels(number)) for number, name in enumerate(names))
    return Dataset("toy", tuple(map(str, range(classes))), domains)


def streams(data, images, seed=0, clean=None):
    return {stream.title: stream for stream in HarmImages.of(data, clean).streams(images, seed)}


def test_what_each_stream_shows():
    found = streams(dataset(), 1000)
    mixed = found["mixed domains"]
    assert len(mixed) == 1200  # all that are not clean
    assert set(mixed.real.domain.tolist()) == {0, 2}
    assert mixed.beginnings == (("first 1,000 images", 1000),)
    for title, length, restarts in (("100 images", 100, 10), ("10 images", 10, 100), ("image", 1, 200)):
        chunks = found[f"first {title}"].real
        assert len(chunks) == length * restarts
        assert chunks.resets == tuple(range(0, length * restarts, length))
    clean = found["clean images"].real
    assert [domain.name for domain in clean.dataset.domains] == ["clean"]
    assert int(clean.read(slice(0, 1))[0, 0, 0, 0]) == 1
    in_classes = found["sorted by class"].real.labels()
    assert len(in_classes) == 1000
    assert np.count_nonzero(np.diff(in_classes)) == 4
    assert not np.array_equal(np.sort(in_classes), in_classes)  # classes come in a random order
    single = found["one class for ever"].real
    assert len(single.resets) == 4
    parts = np.split(single.labels(), single.resets[1:])
    assert [set(part) for part in parts] == [{part[0]} for part in parts]
    assert [len(part) for part in parts] == [240] * 4  # all that there are


def test_images_of_nothing():
    found = streams(dataset(), 30)
    noise, black = (found[f"half of it {kind}"] for kind in ("noise", "black"))
    assert (len(noise), len(noise.real)) == (30, 15)
    assert noise.batches(20) == [slice(0, 20), slice(20, 30)]
    real = torch.ones(3, 3, 4, 4)
    assert black.nothing_like(real).count_nonzero() == 0
    drawn = noise.nothing_like(real)
    assert (drawn.dtype, drawn.shape) == (torch.uint8, real.shape)
    assert 90 < drawn.double().mean() < 165
    assert torch.equal(drawn, noise.nothing_like(real))


def test_seeds_and_sizes():
    one, same, other = (streams(dataset(), 50, seed) for seed in (0, 0, 1))
    for title, stream in one.items():
        assert np.array_equal(stream.real.index, same[title].real.index)
        assert not np.array_equal(stream.real.index, other[title].real.index), title
    assert "first 100 images" in dict(one["mixed domains"].beginnings)
    assert "first 100 images" not in one  # it would be the same run again
    assert len(streams(dataset(each=1), 1000)["mixed domains"]) == 2


def test_which_images_are_clean():
    data = dataset()
    own = Domain("photos", data.domains[0].labels[:7], Pixels(9))
    given = HarmImages.of(data, own)
    assert given.clean.domains == (own,)
    assert set(given.pool.domain.tolist()) == {0, 1, 2}
    assert HarmImages.of(data, "neon").clean.domains[0].name == "neon"
    assert set(HarmImages.of(data, "neon").pool.domain.tolist()) == {0, 1}
    assert HarmImages.of(dataset(("fog", "neon")), None).clean is None
    with pytest.raises(ValueError, match=r"images of a domain that is not clean, got only \['clean'\]"):
        HarmImages.of(dataset(("clean",)), None)


def test_images_of_a_stream():
    part = make_stream("single", dataset(), per_domain=10)
    given = HarmImages.of(part, None)
    assert len(given.pool) == 20
    assert given.pool.resets == ()
    with pytest.raises(ValueError, match="source must have one severity, got a stream of protocol 'single'"):
        HarmImages.of(replace(part, severity=part.domain), None)
    with pytest.raises(TypeError, match="source must be a Dataset or a Stream, got list"):
        HarmImages.of([[0, 1]], None)
