"""The benchmark of preprocessing, on few and small pictures."""

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import load_benchmark


def test_it_runs_and_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    arguments = ["--batch", "2", "--size", "32", "--files", "3", "--workers", "0", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["preprocess", *arguments, "--out", str(out)])
    load_benchmark("preprocess").main()
    results = json.loads(out.read_text())
    assert {row["path"] for row in results["resizing"]} >= {"CPU, Pillow", "CPU, matrix products"}
    assert [row["workers"] for row in results["files"]] == [0]
    assert results["resizing"][0]["ratio"] == 1


def test_too_few_files(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["preprocess", "--files", "100"])
    with pytest.raises(SystemExit):
        load_benchmark("preprocess").main()
    assert "--files must be more than --batch" in capsys.readouterr().err
