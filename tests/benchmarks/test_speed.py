"""The speed benchmark on a small tower, and its slow twin against the method."""

import json

import pytest
import torch

import ramen
from ramen import testing
from tests.helpers.benchmark_scripts import load_benchmark


@pytest.fixture
def speed(monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    module = load_benchmark("speed")
    monkeypatch.setattr(
        module,
        "random_classifier",
        lambda setting, *_, **__: testing.small_classifier(classes=setting.classes),
    )
    return module


def test_every_part_is_timed(speed, monkeypatch, tmp_path):
    """By a clock that calls once: the real one has tests of its own."""
    timed = []

    def call_once(call):
        call()
        timed.append(call)
        return float(len(timed))

    monkeypatch.setattr(speed, "Clock", lambda *_: call_once)
    out = tmp_path / "speed.json"
    sizes = ["--classes", "3", "--capacity", "4", "--topk", "3", "--batch", "5"]
    words = ["--setting", "cifar10c", *sizes, "--repeats", "1", "--rounds", "1", "--plain-loop"]
    monkeypatch.setattr("sys.argv", ["speed.py", *words, "--out", str(out)])
    speed.main()
    (setting,) = json.loads(out.read_text())["settings"].values()
    rows = {row["what"]: row for row in setting["rows"]}
    (own_size,) = [row for name, row in rows.items() if name.startswith("forward") and "batch 8" in name]
    assert own_size["forwards"] == rows["forward, the module's own"]["forwards"] == 1
    assert rows.keys() >= {
        "ramen, a plain loop, batch 5",
        "ramen, sign",
        "ramen, fp16, cpu",
        "ramen, sign, split",
        "ramen, sign, batch 8",
        "ramen, sign, classes 12",
        "tent",
    }
    assert rows["ramen, sign"]["memory_bytes"] < rows["ramen, fp16"]["memory_bytes"]
    assert set(rows["ramen, sign"]["stages"]) >= {"forward and backward", "select", "aggregate"}
    stages = [stage for row in rows.values() for stage in row.get("stages", ())]
    assert len(timed) == len(rows) + len(stages)


def test_the_plain_loop_is_ramen(speed):
    """It is the slow side of a ratio: it must do the same work."""
    classifier = testing.small_classifier(dtype="float64")
    method = ramen.create("ramen", classifier, capacity=4, topk=2, codec="fp32", beta=5.0, lr=1e-2)
    twin = speed.PlainRamen(classifier, 4, 2, beta=5.0, lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    same = []
    for _ in range(6):
        images = torch.randn(6, 3, 32, 32, generator=generator)
        same.append((method.predict(images).logits - twin.predict(images)).abs().amax(1))
    # the twin stores gradients in half precision, where a sign near zero may turn
    assert torch.cat(same).median() < 0.05
