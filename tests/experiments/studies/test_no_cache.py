"""Ramen without its cache: the same updates, and times that add up."""

import pytest
import torch

from ramen import testing
from ramen.data.registry import load
from ramen.data.streams.stream import make_stream
from ramen.experiments.run.results import read_result, write_result
from ramen.experiments.studies import no_cache
from ramen.experiments.studies.no_cache import no_cache_study, recomputed_gradient
from ramen.memory.retrieval import Memory
from ramen.methods._steps import entropy


@pytest.fixture(scope="module")
def data():
    return load("tiny", domains=["gaussian_noise", "fog", "neon"], pictures=40)


@pytest.fixture(scope="module")
def classifier():
    return testing.small_classifier()  # five classes; which ones are right does not matter


@pytest.mark.parametrize("visibility", ["batch", "causal"])
@pytest.mark.parametrize(("codec", "bound"), [("fp32", 1e-4), ("fp16", 1e-3)])
def test_updates_are_the_same(data, classifier, codec, bound, visibility):
    parameters = {"codec": codec, "visibility": visibility, "topk": 2, "capacity": 3}
    result = no_cache_study(classifier, make_stream("mixed", data), parameters, queries=7, after=60, batch=25)
    found = result["data"]
    assert [query["position"] for query in found["queries"]] == list(range(75, 82))
    assert all(5 < query["support"] <= 10 for query in found["queries"])
    assert found["worst"]["relative_difference"] < bound
    assert found["worst"]["differing_signs"] < 0.01
    assert found["worst"]["largest_differing"] < 20 * bound  # only what is next to nothing steps otherwise
    assert found["same_labels"] == 7
    assert found["full_support"] == 2 * classifier.num_classes


def test_numbers_count_from_the_last_reset(data, classifier):
    """Each domain on its own: the entries of the second one are not the stream's first images."""
    stream = make_stream("single", data)
    assert stream.resets == (0, 40, 80)
    found = no_cache_study(classifier, stream, {"codec": "fp32", "topk": 1}, queries=4, after=60, batch=20)[
        "data"
    ]
    assert found["worst"]["relative_difference"] < 1e-4


def test_times_add_up(data, classifier, tmp_path, monkeypatch):
    """With a clock of our own: 2 s a batch of 20 but the first, 3 s for a query's gradients."""
    clock = iter([9.0, 2.0, 2.0, 3.0, 3.0])

    def seconds(call, device):
        call()
        return next(clock)

    monkeypatch.setattr(no_cache, "seconds", seconds)
    result = no_cache_study(classifier, make_stream("mixed", data), queries=2, after=40, batch=20)
    write_result(tmp_path / "study.json", result)
    assert read_result(tmp_path / "study.json") == result
    found = result["data"]
    support = found["support"]
    assert found["seconds"]["cached"] == pytest.approx(0.1)
    assert found["seconds"]["recomputed"] == pytest.approx(3.1)
    assert found["seconds_an_entry"] == pytest.approx(3 / support)
    assert found["seconds"]["recomputed_full"] == pytest.approx(0.1 + 3 / support * found["full_support"])
    assert found["whole_stream"]["cached"] == pytest.approx(12)
    assert found["whole_stream"]["recomputed"] == pytest.approx(372)
    assert found["ratio"] == pytest.approx(31)
    time, equality = result["tables"]
    assert time["rows"][0] == ["with the cache", "100 ms", "12.0 s", "1"]
    assert time["rows"][1][1:] == ["3.1 s", "6m12s", "31"]
    assert time["rows"][-1] == ["paper, without", "2.8 s", "115h42m", "491"]
    assert equality["rows"][-1] == ["answers: same label", "2 of 2"]


def test_a_wrong_cache_is_an_error(data, classifier, monkeypatch):
    aggregate = Memory.aggregate
    monkeypatch.setattr(Memory, "aggregate", lambda *given, **named: 1.05 * aggregate(*given, **named))
    with pytest.raises(RuntimeError, match=r"differ by 0.05 of their length, .*: the cache is wrong"):
        no_cache_study(classifier, make_stream("mixed", data), queries=2, after=20, batch=20)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"queries": 100, "after": 100},
            "must be at most the stream's 120 images, got 100 [+] 100",
        ),
        ({"queries": 0}, "queries must be at least 1"),
    ],
)
def test_bad_input(data, classifier, given, message):
    with pytest.raises(ValueError, match=message):
        no_cache_study(classifier, make_stream("mixed", data), **given)


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
