"""The cost benchmark, on a small tower."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ramen
from ramen import testing
from tests.helpers.benchmark_scripts import load_benchmark


@pytest.fixture
def cost(monkeypatch):
    module = load_benchmark("cost")
    monkeypatch.setattr(
        module, "random_classifier", lambda model, classes, device, dtype: testing.small_classifier()
    )
    return module


def run(cost, monkeypatch, tmp_path, *methods):
    """The results of the benchmark's command line for these methods."""
    out = tmp_path / "cost.json"
    words = [word for name in methods for word in ("--run", name)]
    monkeypatch.setattr("sys.argv", ["cost.py", "--batch", "4", "--repeats", "2", "--out", str(out), *words])
    cost.main()
    return json.loads(out.read_text())


def test_every_named_method_is_timed(cost, monkeypatch, tmp_path, capsys):
    """Every call takes 0.1 s here: WATT's time is that of all its rounds, though one is run."""

    def seconds(call, device):
        call()
        return 0.1

    monkeypatch.setattr("ramen.experiments.studies.cost.seconds", seconds)
    monkeypatch.setattr(cost, "seconds", lambda call, device: 3 * seconds(call, device))
    results = run(cost, monkeypatch, tmp_path, "tda", "rotta", "watt")
    assert {name: row["forwards"] for name, row in results["methods"].items()} == {
        "tda": 1,
        "rotta": 1,
        "watt": pytest.approx(71 / 15),  # five rounds of two steps for each of seven templates
    }
    assert "71 / 70" in capsys.readouterr().out
    assert results["backward_milliseconds"] == pytest.approx(200)  # 300 with the forward pass


def test_times_are_the_fastest_as_multiples_of_a_forward(cost, monkeypatch, tmp_path, capsys):
    def method_cost(name, classifier, warm_up, timed):
        assert [len(images) for images in timed] == [4, 4]
        return SimpleNamespace(seconds=(0.030, 0.025), forwards=3, backwards=2)

    monkeypatch.setattr(cost, "forward_times", lambda classifier, warm_up, timed: [0.011, 0.012])
    monkeypatch.setattr(cost, "recorded_forward_times", lambda classifier, images, repeats: [0.013, 0.010])
    monkeypatch.setattr(cost, "gradient_times", lambda classifier, images, repeats: [0.020, 0.016])
    monkeypatch.setattr(cost, "method_cost", method_cost)
    results = run(cost, monkeypatch, tmp_path, "tent")
    assert results["plain_forward_milliseconds"] == 10
    assert results["backward_milliseconds"] == pytest.approx(6)
    assert results["methods"] == {
        "tent": {
            "milliseconds_a_batch": 25,
            "forwards": 2.5,
            "passes": {"forward": 3, "backward": 2},
            "of_counted": pytest.approx(25 / (3 * 10 + 2 * 6)),  # more than 15 % off: marked
        }
    }
    assert ["tent", "25.0", "2.50", "3", "/", "2", "0.60", "!"] in [
        line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()
    ]


def test_a_method_as_slow_as_its_passes_has_no_mark(cost, monkeypatch, tmp_path, capsys):
    def method_cost(name, classifier, warm_up, timed):
        return SimpleNamespace(seconds=(0.0179,), forwards=1, backwards=1)

    monkeypatch.setattr(cost, "forward_times", lambda classifier, warm_up, timed: [0.010])
    monkeypatch.setattr(cost, "recorded_forward_times", lambda classifier, images, repeats: [0.011])
    monkeypatch.setattr(cost, "gradient_times", lambda classifier, images, repeats: [0.016])
    monkeypatch.setattr(cost, "method_cost", method_cost)
    run(cost, monkeypatch, tmp_path, "tent")
    shown = capsys.readouterr().out
    assert "1.12" in shown
    assert "!" not in shown


def test_a_method_that_the_model_cannot_run_is_named(cost, monkeypatch, tmp_path, capsys):
    def method_cost(name, classifier, warm_up, timed):
        raise cost.MissingPartError("there is no text tower")

    monkeypatch.setattr(cost, "method_cost", method_cost)
    results = run(cost, monkeypatch, tmp_path, "tpt")
    assert results["methods"] == {"tpt": {"reason": "there is no text tower"}}
    assert "tpt cannot run on this model: there is no text tower" in capsys.readouterr().out


def test_random_classifier_can_serve_every_method():
    module = load_benchmark("cost")
    classifier = module.random_classifier("ViT-S-32-alt", 3, "cpu", "float32")
    assert classifier.num_classes == 3
    assert classifier.pixel_statistics is not None
    assert classifier.template_embeddings.shape[:2] == (3, 7)
    assert not classifier.encode_text(["a cat"]).equal(classifier.encode_text(["a dog"]))


def test_predictions_spread_over_the_classes():
    """Memories with a share for each class are in use then, and a method's passes are those it counts."""
    module = load_benchmark("cost")
    before = testing.small_classifier(classes=6)
    images = torch.randn(8, 3, *before.image_size, generator=torch.Generator().manual_seed(1))
    after = module.with_spread_classes(before, images.split(4))
    labels = after.logits(after.encode(images)).argmax(1)
    assert labels[:6].tolist() == list(range(6))
    assert len(before.logits(before.encode(images)).argmax(1).unique()) < 6


def test_augmentation_is_timed_by_itself(cost, monkeypatch, tmp_path, capsys):
    """A pass takes 10 ms, a change of a batch 4: of CoTTA's 34 passes and 32 changes the rest is left."""
    monkeypatch.setattr(
        cost,
        "method_cost",
        lambda name, *_: SimpleNamespace(seconds=(0.48,), forwards=34, backwards=1),
    )
    monkeypatch.setattr(cost, "forward_times", lambda classifier, warm_up, timed: [0.010])
    monkeypatch.setattr(cost, "recorded_forward_times", lambda classifier, images, repeats: [0.011])
    monkeypatch.setattr(cost, "gradient_times", lambda classifier, images, repeats: [0.020])
    monkeypatch.setattr(cost, "seconds", lambda call, device: (call(), 0.004)[1])
    rows = run(cost, monkeypatch, tmp_path, "cotta", "zero", "roid", "tent")["methods"]
    assert rows["cotta"]["augmentation_milliseconds"] == pytest.approx(32 * 4)
    assert rows["cotta"]["of_counted"] == pytest.approx(480 / 350)
    assert rows["cotta"]["of_counted_without_augmentation"] == pytest.approx((480 - 128) / 350)
    assert rows["zero"]["augmentation_milliseconds"] == pytest.approx(4)
    assert rows["roid"]["augmentation_milliseconds"] == pytest.approx(4)
    assert "augmentation_milliseconds" not in rows["tent"]
    assert "1.01" in capsys.readouterr().out


def test_the_page_of_methods_shows_the_committed_costs():
    root = Path(__file__).resolve().parents[2]
    rows = json.loads((root / "benchmarks/results/cost_vit_b_16_h200_fp16.json").read_text())["methods"]
    lines = re.findall(
        r"^\| `(\w+)` \|.*\| ([\d.]+|-) \|$", (root / "docs/methods.md").read_text(), re.MULTILINE
    )
    shown = dict(lines[: len(ramen.list_methods())])
    assert set(shown) == set(ramen.list_methods()) == set(rows)
    for name, text in shown.items():
        forwards = rows[name].get("forwards")
        decimals = 0 if forwards is not None and forwards >= 10 else 1
        assert text == ("-" if forwards is None else f"{forwards:.{decimals}f}"), name
