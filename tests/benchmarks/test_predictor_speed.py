"""The benchmark of the predictor, on few files."""

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.benchmark_scripts import load_benchmark


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend("benchmarks")
    return load_benchmark("predictor")


def test_it_runs_and_writes_what_it_found(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = ["--batch", "2", "--files", "5", "--workers", "0", "--repeats", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["predictor", *arguments])
    benchmark.main()
    results = json.loads(out.read_text())
    (row,) = results["rows"]
    assert row["workers"] == 0
    assert all(row[name] > 0 for name in ("decoding", "method", "classify"))
    assert row["of_the_slower"] == row["classify"] / min(row["decoding"], row["method"])
    assert f"{row['of_the_slower']:.2f}" in capsys.readouterr().out


def test_the_best_repeat_counts_and_is_related_to_the_slower_part(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rates that are given, in the order in which they are measured."""
    rates = {
        "predicting": iter([90.0, 100.0]),
        "decoding": iter([50.0, 200.0, 40.0, 150.0]),  # for 0 and 2 workers, twice
        "classifying": iter([30.0, 70.0, 45.0, 80.0]),
    }
    for name, values in rates.items():
        monkeypatch.setattr(benchmark, name, lambda *args, values=values: next(values))
    options = argparse.Namespace(
        **{"model": "tiny", "method": "tent", "device": "cpu", "dtype": "float32"},
        **{"files": 3, "batch": 2, "repeats": 2, "workers": [0, 2]},
    )
    assert benchmark.measure(options, tmp_path) == [
        {"workers": 0, "decoding": 50.0, "method": 100.0, "classify": 45.0, "of_the_slower": 0.9},
        {"workers": 2, "decoding": 200.0, "method": 100.0, "classify": 80.0, "of_the_slower": 0.8},
    ]


def test_the_first_batch_is_not_timed(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: now[0])

    def batches():
        for images, seconds in ((5, 100.0), (4, 1.0), (2, 2.0)):
            now[0] += seconds
            yield [None] * images

    assert benchmark.rate(batches()) == 2.0


def test_too_few_files(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["predictor", "--files", "32"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "--files must be more than --batch" in capsys.readouterr().err
