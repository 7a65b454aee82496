"""The table of gains, on very short streams."""

import json
import statistics

import pytest
import torch

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
    shown = capsys.readouterr().out
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


OWN = """
import numpy as np, torch
from ramen import testing

def parts():
    torch.manual_seed(0)
    return testing.small_tower(), torch.randn(6, 24), 20.0, lambda pixels: pixels / 64 - 2

def clean():
    draws = np.random.default_rng(0)
    return draws.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8), np.arange(8) % 6

def mixed(count):
    draws = np.random.default_rng(1)
    labels = np.arange(2 * count) % 6
    return draws.integers(0, 256, (2 * count, 32, 32, 3), dtype=np.uint8), labels, labels * 0, ["all"]
"""


def test_a_network_of_ones_own(gains, monkeypatch, tmp_path):
    width = ramen.testing.small_tower()(torch.zeros(1, 3, 32, 32)).shape[1]
    (tmp_path / "mine.py").write_text(OWN.replace("24", str(width)))
    given = ["--own", tmp_path / "mine.py", "--classes", 6, 3, "--per-domain", 12, "--seeds", 0]
    results = run(gains, monkeypatch, tmp_path, *given)
    sizes = {name: (result["classes"], result["images"]) for name, result in results.items()}
    assert sizes == {
        "mine, clean images, 6 classes": (6, 8),
        "mine, 6 classes": (6, 24),
        "mine, 3 classes": (3, 12),
    }
