"""The cost benchmark, on a small tower."""

import json

import pytest

from ramen import testing
from tests.conftest import load_benchmark


@pytest.fixture
def cost(monkeypatch):
    module = load_benchmark("cost")
    monkeypatch.setattr(
        module, "random_classifier", lambda model, classes, device, dtype: testing.small_classifier()
    )
    return module


def test_every_named_method_is_timed_as_multiples_of_a_forward(cost, monkeypatch, tmp_path, capsys):
    out = tmp_path / "cost.json"
    names = ["tda", "rotta", "watt"]
    runs = [word for name in names for word in ("--run", name)]
    monkeypatch.setattr("sys.argv", ["cost.py", "--batch", "4", "--repeats", "1", "--out", str(out), *runs])
    cost.main()
    results = json.loads(out.read_text())
    assert list(results["methods"]) == names
    for row in results["methods"].values():
        ratio = row["milliseconds_a_batch"] / results["plain_forward_milliseconds"]
        assert row["forwards"] == pytest.approx(ratio)
    # seventy steps, of which a fifth is run
    assert results["methods"]["watt"]["forwards"] > 20
    assert "71 / 70" in capsys.readouterr().out


def test_random_classifier_can_serve_every_method():
    module = load_benchmark("cost")
    classifier = module.random_classifier("ViT-B-32", 3, "cpu", "float32")
    assert classifier.num_classes == 3
    assert classifier.pixel_statistics is not None
    assert classifier.template_embeddings.shape[:2] == (3, 7)
    assert not classifier.encode_text(["a cat"]).equal(classifier.encode_text(["a dog"]))
