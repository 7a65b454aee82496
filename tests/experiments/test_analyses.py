"""The analyses of the paper: pairs by similarity against sorting them, times that add up."""

import numpy as np
import pytest
import torch

from ramen import testing
from ramen.data.catalogue import load
from ramen.data.streams.stream import make_stream
from ramen.experiments import analyses
from ramen.experiments.analyses import (
    binned,
    draw_pairs,
    embed,
    recomputed_gradient,
    similarity,
    without_cache,
)
from ramen.methods._losses import entropy
from ramen.models.tiny_clip.model import load_tiny
from ramen.utils.draws import Draws


@pytest.fixture(scope="module")
def data():
    return load("tiny", domains=["gaussian_noise", "fog", "neon"], pictures=40)


# -- similarity -------------------------------------------------------------------------------------


def test_pairs_are_drawn_evenly():
    left, right = draw_pairs(5, 100_000, Draws(0, "test"))
    pairs, counts = np.unique(np.stack([left, right]), axis=1, return_counts=True)
    assert pairs.shape[1] == 5 * 4  # every ordered pair of different images
    assert (left != right).all()
    assert counts == pytest.approx(5000, rel=0.06)
    assert np.array_equal(left, draw_pairs(5, 100_000, Draws(0, "test"))[0])


@pytest.mark.parametrize(("pairs", "bins"), [(100, 10), (97, 10), (50, 7), (6, 6)])
def test_bins_of_equal_count(pairs, bins):
    """A pair on the edge of two bins is divided between them."""
    rng = np.random.default_rng(pairs)
    alike, same = rng.normal(size=pairs), rng.random(pairs) < 0.4
    found = binned(torch.from_numpy(alike), torch.from_numpy(same), bins)
    ordered, size = same[np.argsort(-alike)], pairs / bins
    expected = []
    for number in range(bins):
        places = np.arange(pairs)
        part = np.clip(np.minimum(places + 1, (number + 1) * size) - np.maximum(places, number * size), 0, 1)
        expected.append(100 * (part * ordered).sum() / size)
    assert found.shares == pytest.approx(expected)
    assert found.same_domain == pytest.approx(100 * same.mean())


def test_drawn_pairs_come_near_all_pairs_within_their_error(data):
    classifier, stream = load_tiny(data.classes), make_stream("mixed", data)
    embeddings = embed(classifier, stream, 50)
    left, right = torch.triu_indices(len(stream), len(stream), 1)
    domains = torch.from_numpy(stream.domain.copy())
    exact = binned((embeddings[left] * embeddings[right]).sum(1), domains[left] == domains[right])
    drawn = [similarity(classifier, stream, pairs=3000, seed=seed) for seed in range(24)]
    apart = [(np.array(one.shares) - exact.shares) / one.errors for one in drawn]
    assert 0.7 < np.std(apart) < 1.3
    assert abs(np.mean(apart)) < 0.5
    assert exact.shares[0] > 1.5 * exact.same_domain  # drawings of one domain look alike


def test_one_image_has_no_pairs(data):
    with pytest.raises(ValueError, match="images"):
        similarity(testing.small_classifier(), make_stream("mixed", data, limit=1))


# -- without the cache ------------------------------------------------------------------------------


def test_times_add_up(data, monkeypatch):
    """With a clock of our own: 2 s a batch of 20 but the first, 3 s for a query's gradients."""
    clock = iter([9.0, 2.0, 2.0, 3.0, 3.0])

    def seconds(call, device):
        call()
        return next(clock)

    monkeypatch.setattr(analyses, "seconds", seconds)
    classifier, stream = testing.small_classifier(), make_stream("mixed", data)
    found = without_cache(classifier, stream, {"topk": 2}, queries=2, after=40, batch=20)
    assert found.cached == pytest.approx(0.1)
    assert found.entry == pytest.approx(3 / found.support)
    assert found.most == 2 * classifier.num_classes
    assert found.uncached == pytest.approx(0.1 + 3 / found.support * found.most)
    assert found.queries == 2
    with pytest.raises(ValueError, match="after"):
        without_cache(classifier, stream, queries=100, after=100)


def test_entries_count_from_the_last_reset(data, monkeypatch):
    """Each domain on its own: the images that are recomputed are of the query's domain."""
    stream = make_stream("single", data)
    read = []
    whole = type(stream).read

    def watched(self, part):
        read.append(part)
        return whole(self, part)

    monkeypatch.setattr(type(stream), "read", watched)
    without_cache(testing.small_classifier(), stream, {"topk": 1}, queries=4, after=60, batch=20)
    entries = [part.start for part in read if part.stop - part.start == 1]
    assert entries
    assert min(entries) >= stream.resets[1]


@pytest.mark.parametrize("batch", [3, 100])
def test_the_gradient_of_the_support(tower_kind, images, batch):
    """Against backward passes of one image after the other through the ordinary tower, in fp64."""
    classifier = testing.small_classifier(tower_kind, dtype="float64")
    tower = testing.small_tower(tower_kind).double()
    weights = torch.rand(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parameters = dict(tower.named_parameters())
    expected = torch.zeros_like(classifier.encoder.base)
    for image, weight in zip(images.double(), weights, strict=True):
        tower.zero_grad()
        features = torch.nn.functional.normalize(tower(image[None]), dim=-1)
        entropy(classifier.logits(features)).sum().backward()
        for piece in classifier.encoder.layout:
            expected[piece.start : piece.stop] += weight * parameters[piece.name].grad.flatten()
    found = recomputed_gradient(classifier, images.double(), weights, batch)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
