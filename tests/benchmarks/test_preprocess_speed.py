"""The benchmark of preprocessing, on few and small images."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from tests.helpers.benchmark_scripts import load_benchmark


def test_it_runs_and_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    arguments = ["--batch", "2", "--size", "32", "--files", "3", "--workers", "0", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["preprocess", *arguments, "--out", str(out)])
    load_benchmark("preprocess").main()
    results = json.loads(out.read_text())
    assert {row["path"] for row in results["resizing"]} >= {"CPU, Pillow", "CPU, matrix products"}
    assert [row["workers"] for row in results["files"]] == [0]
    assert all(row["milliseconds_a_batch"] > 0 for row in results["resizing"])


def test_ratios_are_to_pillow_and_shares_to_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With times that are given: 2 images in 10 ms by Pillow, in 40 ms by matrices; a step takes 50 ms."""
    benchmark = load_benchmark("preprocess")
    spent = {"CPU, Pillow": 10.0, "CPU, matrix products": 40.0}
    monkeypatch.setattr(benchmark, "cpu_milliseconds", lambda calls, repeats: dict(spent))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = argparse.Namespace(size=32, batch=2, repeats=1, step=50.0)
    rows = benchmark.resizing(options, Console(quiet=True))
    names = ("path", "images_a_second", "ratio", "of_a_step")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("CPU, Pillow", 200.0, 1.0, 0.2),
        ("CPU, matrix products", 50.0, 0.25, 0.8),
    ] * 2  # for small and for large images


def test_the_fastest_run_of_each_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = load_benchmark("preprocess")
    now, order = [0.0], []
    monkeypatch.setattr(benchmark, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def taking(name: str, *seconds: float) -> Callable[[], None]:
        remaining = iter(seconds)

        def call() -> None:
            order.append(name)
            now[0] += next(remaining)

        return call

    fastest = benchmark.cpu_milliseconds({"a": taking("a", 3, 1, 2), "b": taking("b", 4, 5, 6)}, repeats=3)
    assert fastest == {"a": 1000.0, "b": 4000.0}
    assert order == ["a", "b"] * 3  # in turn


def test_too_few_files(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["preprocess", "--files", "100"])
    with pytest.raises(SystemExit):
        load_benchmark("preprocess").main()
    assert "--files must be more than --batch" in capsys.readouterr().err
