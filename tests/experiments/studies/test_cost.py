"""The cost study: its numbers are those of the clock and of the methods."""

import pytest
import torch

from ramen import testing
from ramen.data.registry import load
from ramen.data.streams.stream import make_stream
from ramen.experiments.run.results import read_result, write_result
from ramen.experiments.studies import cost
from ramen.experiments.studies.cost import cost_study, method_cost
from ramen.methods._registry import create
from ramen.models.classifier import ZeroShotClassifier
from ramen.models.tiny_clip.model import load_tiny


@pytest.fixture(scope="module")
def tiny():
    data = load("tiny", domains=["fog", "neon"], pictures=20)
    return load_tiny(data.classes), make_stream("mixed", data)


def test_study(tiny, tmp_path, monkeypatch):
    """With a clock of our own: a forward pass takes 1 s, EntMin 3, RoTTA 5 and 7."""
    classifier, stream = tiny
    clock = iter([1.0, 1.0, 3.0, 3.0, 5.0, 7.0])

    def seconds(call, device):
        call()
        return next(clock)

    monkeypatch.setattr(cost, "seconds", seconds)
    parameters = {"entmin": {"lr": 0.005}}
    result = cost_study(classifier, stream, ["entmin", "rotta"], parameters, warm_up=1, batches=2, batch=10)
    write_result(tmp_path / "study.json", result)
    assert read_result(tmp_path / "study.json") == result
    found = result["data"]["methods"]
    assert result["data"]["forward_ms_an_image"] == 100
    assert found["entmin"]["ms_an_image"] == 300
    assert found["entmin"]["parameters"] == {"lr": 0.005}
    assert (found["rotta"]["ms_an_image"], found["rotta"]["units"]) == (600, 6)
    assert (found["rotta"]["forwards"], found["rotta"]["backwards"]) == (3, 1)
    assert found["rotta"]["memory_bytes"] == create("rotta", classifier, memory=10).memory_bytes() > 0
    assert found["rotta"]["peak_device_bytes"] is None
    assert found["rotta"]["peak_host_bytes"] > 100 * 2**20  # torch alone is larger
    rows = {row[0]: row[1:] for row in result["tables"][0]["rows"]}
    assert rows["a plain forward pass"][:2] == ["100.000", "1.00"]
    assert rows["rotta"][:3] == ["600.000", "6.00", "3 / 1"]
    assert rows["rotta"][-1] == "3.57"  # 19m29s against 5m27s
    assert rows["entmin"][-1] == ""


def test_part_of_the_work_is_timed_and_multiplied(monkeypatch):
    counted = testing.CountingClassifier(testing.small_classifier())
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(cost, "seconds", lambda call, device: float(call() is not None))
    found = method_cost("watt", counted, [], [images])
    assert len(counted.forwards) == 15  # a round of fourteen steps of five, and the answer
    assert (found.forwards, found.backwards) == (71, 70)
    assert found.seconds == (71 / 15,)
    counted.forwards.clear()
    given = method_cost("watt", counted, [], [images], {"rounds": 2})  # what was asked for is done
    assert given.seconds == (1.0,)
    assert len(counted.forwards) == given.forwards == 29


def test_a_method_that_cannot_run_is_reported(tiny):
    full, stream = tiny
    bare = ZeroShotClassifier(full.encoder, full.class_embeddings, 38.0, preprocess=full._preprocess)
    result = cost_study(bare, stream, ["ensemble", "watt"], warm_up=0, batches=1, batch=5)
    assert "reason" in result["data"]["methods"]["watt"]
    assert "watt cannot run on this model" in result["tables"][0]["note"]
    assert result["data"]["methods"]["ensemble"]["units"] > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": 30}, r"the stream must have 2 \+ 5 whole batches of 30, got 1"),
        ({"methods": ["rammen"]}, "rammen"),
        ({"batches": 0}, "batches must be at least 1"),
    ],
)
def test_bad_input(tiny, given, message):
    with pytest.raises(ValueError, match=message):
        cost_study(*tiny, **given)


@pytest.mark.gpu
def test_memory_on_a_gpu(tiny):
    _, stream = tiny
    classifier = load_tiny(stream.dataset.classes, device="cuda")
    result = cost_study(classifier, stream, ["ramen"], warm_up=1, batches=1, batch=10)
    assert result["data"]["methods"]["ramen"]["peak_device_bytes"] > 4 * 2**20
