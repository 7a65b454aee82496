"""The benchmark of the embedded model, on very short streams."""

import json
import statistics

import pytest

from ramen.experiments import demo
from ramen.experiments.plan.presets import load_preset
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


def test_tuning_goes_through_every_setting(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(tiny, "GRID", {"ensemble": [{}], "tent": [{"lr": 0.0}, {"lr": 0.1}]})
    run(tiny, monkeypatch, "--tune", "--seeds", 7, "--out", tmp_path / "results.json")
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [(row["method"], row["parameters"]) for row in rows] == [
        ("ensemble", {}),
        ("tent", {"lr": 0.0}),
        ("tent", {"lr": 0.1}),
    ]
    # a step of no size changes nothing
    assert rows[0]["average"] == rows[1]["average"]


def test_the_demos_settings_are_the_best_of_the_committed_tuning(tiny):
    path = tiny.Path(tiny.__file__).parent / "results" / "tiny_tuning_cpu.json"
    rows = json.loads(path.read_text())["rows"]
    for method in ("entmin", "tent"):  # Ramen has nothing to tune
        best = max(
            (row for row in rows if row["method"] == method), key=lambda r: statistics.mean(r["average"])
        )
        preset = load_preset("tiny").row(method, "mixed")
        assert best["parameters"] == {name: preset[name] for name in best["parameters"]}
