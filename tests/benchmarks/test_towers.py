"""The benchmark of towers on small ones, and its page."""

import json
from functools import partial

import pytest
import torch
import torchvision
from torch import nn

from tests.helpers.benchmark_scripts import load_benchmark


@pytest.fixture
def towers(monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # which is quick
    return load_benchmark("towers")


def covered() -> nn.Module:
    return torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1])


def not_covered() -> nn.Module:
    layers = nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers)


def test_rows_of_covered_and_other_towers(towers, monkeypatch, tmp_path):
    import speed  # the copy that the benchmark of towers uses

    def fresh_tower(model):
        tower = {"covered": covered, "not covered": not_covered}[model]()
        tower.image_size = (32, 32)
        return tower

    monkeypatch.setattr(speed, "fresh_tower", fresh_tower)
    speed.random_tower.cache_clear()
    out = tmp_path / "towers.json"
    sizes = ["--classes", "3", "--capacity", "4", "--topk", "2", "--batch", "5"]
    words = ["--tower", "covered", "--tower", "not covered", "--tower", "unknown", *sizes]
    monkeypatch.setattr(
        "sys.argv", ["towers.py", *words, "--repeats", "1", "--rounds", "1", "--stages", "--out", str(out)]
    )
    towers.main()
    results = json.loads(out.read_text())
    fused, compiled, failed = results["towers"]
    assert (fused["path"], fused["plain_reason"], compiled["path"]) == ("fused", "", "compiled")
    assert "it is a Sequential" in compiled["plain_reason"]
    assert fused["three_forwards"] == pytest.approx(fused["step_ms"] / (3 * fused["forward_ms"]))
    passes = compiled["forward_ms"] + compiled["forward_and_backward_ms"]
    assert compiled["two_forwards_and_a_backward"] == pytest.approx(compiled["step_ms"] / passes)
    assert "two_forwards_and_a_backward" not in fused
    assert set(fused["stages"]) >= {"forward and backward", "second forward"}
    assert "KeyError" in failed["error"]  # and the others are there
    (table,) = towers.tables(results)
    assert list(table.columns[0].values) == ["covered", "not covered"]
