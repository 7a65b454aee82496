"""The table of gains, on very short streams."""

import json
import statistics

import pytest

import ramen
from tests.helpers.benchmark_scripts import load_benchmark


@pytest.fixture
def gains(monkeypatch):
    module = load_benchmark("gains")
    monkeypatch.setattr(module, "GRID_LR", (0.01,))
    monkeypatch.setattr(module, "LENGTHS", (10,))
    monkeypatch.setattr(module, "SHORT", 5)
    return module


def run(gains, monkeypatch, tmp_path, *arguments):
    out = tmp_path / "gains.json"
    monkeypatch.setattr("sys.argv", ["gains.py", *map(str, arguments), "--out", str(out)])
    gains.main()
    return json.loads(out.read_text())


def test_the_tiny_model(gains, monkeypatch, tmp_path, capsys):
    (result,) = run(gains, monkeypatch, tmp_path, "--classes", 2, "--per-domain", 2, "--seeds", 3, 4).values()
    assert (result["classes"], result["images"], result["seeds"]) == (2, 36, [3, 4])
    assert set(result["rows"]) == {
        "best of the grid",
        "the paper's",
        "older defaults",
        "chosen, no guard",
        "chosen",
    }
    best = result["rows"]["best of the grid"]["gains"]["36"][0]
    grid = [gains.run(bench, p, 3) for bench in gains.tiny([2], 2, "cpu") for p in gains.grid(2)]
    assert best == max(100 * float(one.better.mean()) for one in grid)
    assert result["chosen"]["topk"] == 30
    assert result["ms_an_image"]["chosen"] > 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{statistics.mean(result['rows']['chosen']['gains']['36']):+.2f}" in shown
    assert "5 images one by one" in shown


def test_gains_are_those_of_a_plain_loop(gains):
    (bench,) = gains.tiny([2], 2, "cpu")
    order = bench.order(7)
    method, zero_shot = (ramen.create(name, bench.classifier) for name in ("ramen", "ensemble"))
    gained = 0
    for part in order.split(9):
        images = bench.prepare(part)
        right = [(one.predict(images).labels == bench.labels[part]).sum() for one in (method, zero_shot)]
        gained += int(right[0] - right[1])
    assert float(gains.run(bench, {}, 7, batch=9).better.sum()) == gained
