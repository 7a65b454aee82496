"""The benchmark of stored gradients runs, on sizes too small to mean anything."""

import json
import sys
from pathlib import Path

import pytest

from ramen.memory.codecs import CODECS
from tests.helpers.benchmark_scripts import load_benchmark


def test_sums(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sums.json"
    sizes = {"size": 96, "width": 48, "embedding": 8, "classes": 3, "capacity": 4, "topk": 2, "batch": 6}
    arguments = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["sums.py", *arguments, "--repeats", "1", "--out", str(out)])
    load_benchmark("sums").main()
    results = json.loads(out.read_text())["results"]
    assert [result["codec"] for result in results] == list(CODECS)
    assert all(set(result["milliseconds"]) == {"stage", "insert", "gathered"} for result in results)
    sizes_in_mebibytes = [result["mebibytes"]["cpu"] for result in results]
    assert sizes_in_mebibytes == sorted(sizes_in_mebibytes, reverse=True)
    assert "milliseconds per batch" in capsys.readouterr().out
