"""The benchmark of the embedded model, on very short streams."""

import json
import statistics

import pytest

from ramen.experiments import demo
from tests.helpers.benchmark_scripts import load_benchmark


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(demo, "PER_DOMAIN", 3)
    return load_benchmark("tiny")


def run(tiny, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["tiny.py", *map(str, arguments)])
    tiny.main()


def test_several_seeds(tiny, monkeypatch, tmp_path, capsys):
    run(tiny, monkeypatch, "--seeds", 5, 6, "--out", tmp_path / "results.json")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["seeds"] == [5, 6]
    assert set(results["methods"]) == {"ensemble", *demo.METHODS}
    averages = results["methods"]["ramen"]["average"]
    assert len(averages) == 2
    assert averages[0] != averages[1]
    assert f"{statistics.mean(averages):.2f} ± {statistics.stdev(averages):.2f}" in capsys.readouterr().out
    assert results["clean_zero_shot"] > 97
