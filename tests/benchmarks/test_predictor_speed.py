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
    printed = capsys.readouterr().out
    assert [(row["method"], row["workers"]) for row in results["rows"]] == [("ramen", 0), ("waiting", 0)]
    for row in results["rows"]:
        assert all(row[name] > 0 for name in ("decoding", "alone", "classify"))
        assert row["of_the_slower"] == row["classify"] / min(row["decoding"], row["alone"])
        assert f"{row['of_the_slower']:.2f}" in printed


def test_the_best_repeat_counts_and_is_related_to_the_slower_part(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rates that are given, in the order in which they are measured."""
    rates = {
        "predicting": iter([90.0, 100.0]),
        "decoding": iter([50.0, 200.0, 40.0, 150.0]),  # for 0 and 2 workers, twice
        "classifying": iter([30.0, 49.0, 70.0, 99.0, 45.0, 48.0, 80.0, 98.0]),  # the method, the stand-in
    }
    for name, values in rates.items():
        monkeypatch.setattr(benchmark, name, lambda *args, values=values: next(values))
    options = argparse.Namespace(
        **{"model": "tiny", "method": "tent", "device": "cpu", "dtype": "float32"},
        **{"files": 3, "batch": 2, "repeats": 2, "workers": [0, 2]},
    )
    rows = benchmark.measure(options, tmp_path)
    assert [list(row.values()) for row in rows] == [
        ["tent", 0, 50.0, 100.0, 45.0, 0.9],
        ["tent", 2, 200.0, 100.0, 80.0, 0.8],
        ["waiting", 0, 50.0, 100.0, 49.0, 0.98],
        ["waiting", 2, 200.0, 100.0, 99.0, 0.99],
    ]
    assert list(rows[0]) == ["method", "workers", "decoding", "alone", "classify", "of_the_slower"]


def test_the_first_half_and_the_end_are_not_timed(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: now[0])

    def batches():
        for images, seconds in ((5, 100.0), (5, 50.0), (4, 1.0), (2, 2.0)):
            now[0] += seconds
            yield [None] * images
        now[0] += 1000.0

    assert benchmark.rate(batches()) == 2.0


def test_too_few_files(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["predictor", "--files", "32"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "--files must be more than --batch" in capsys.readouterr().err
