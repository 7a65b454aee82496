"""The benchmark of decoding, with few mutations and small images; and what it measures with."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.helpers.benchmark_scripts import load_benchmark

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="need Linux")


def test_it_runs_and_writes_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = ["--mutations", "5", "--repeats", "1", "--match", "B", "--width", "64", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["decoding", *arguments])
    load_benchmark("decoding").main()
    results = json.loads(out.read_text())
    outcomes = {row["file"]: row["outcome"] for row in results["corpus"]}
    assert outcomes == {"100 MB.png": "it has 95.37 MiB, more than 64.00 MiB"}
    assert results["mutations"]["count"] == 5
    assert results["mutations"]["died"] == 0
    assert [row["outcome"] for row in results["largest"]] == ["decoded, 64 x 36"] * 3 + ["(1, 3, 224, 224)"]
    assert "files of the corpus are within the goal" in capsys.readouterr().out


def test_outcomes() -> None:
    benchmark = load_benchmark("decoding")
    assert benchmark.decoded(benchmark.save(benchmark.drawing(), "PNG")) == "decoded, 48 x 36"
    assert benchmark.decoded(b"") == "it is empty"


def test_the_peak_is_that_of_one_run() -> None:
    """Memory that was given back counts, that of other runs does not."""
    benchmark = load_benchmark("decoding")

    def holding(megabytes: int) -> str:
        return str(len(bytearray(megabytes * 10**6)))

    small, large, again = (benchmark.measure(lambda m=m: holding(m)) for m in (1, 150, 1))
    assert large["outcome"] == "150000000"
    assert 140 < large["megabytes"] < 170
    assert small["megabytes"] < 20
    assert again["megabytes"] < 20
    assert benchmark.is_within_goal(small | {"milliseconds": 10})
    assert not benchmark.is_within_goal(large | {"milliseconds": 10})
    assert not benchmark.is_within_goal(small | {"milliseconds": 200})


def test_a_process_that_dies_is_noticed() -> None:
    benchmark = load_benchmark("decoding")
    row = benchmark.measure(lambda: os.kill(os.getpid(), 9) or "")
    assert row["outcome"] == "died with status 9"
    assert not benchmark.is_within_goal(row)
