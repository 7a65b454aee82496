"""Each part is measured in small, and written down; the forks of decoding measure what they say."""

import json
import os
import sys

import pytest

from ramen import testing
from tests.helpers.benchmark_scripts import load_benchmark


@pytest.fixture
def parts():
    return load_benchmark("parts")


@pytest.fixture
def run(parts, monkeypatch, tmp_path, capsys):
    def run(*words):
        out = tmp_path / "out.json"
        monkeypatch.setattr(sys, "argv", ["parts", *map(str, words), "--out", str(out)])
        parts.main()
        return json.loads(out.read_text()), capsys.readouterr().out

    return run


def test_preprocess(run):
    found, shown = run("preprocess", "--batch", 2, "--size", 32, "--files", 3, "--workers", 0, "--repeats", 1)
    assert [row["path"] for row in found["resizing"][:2]] == ["CPU, Pillow", "CPU, matrix products"]
    assert all(row["milliseconds_a_batch"] > 0 for row in found["resizing"])
    assert [row["workers"] for row in found["files"]] == [0]
    assert "matrix products" in shown
    assert found["settings"]["batch"] == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="need Linux")
def test_decoding(run):
    found, shown = run("decoding", "--mutations", 5, "--repeats", 1, "--match", "B", "--width", 64)
    outcomes = {row["file"]: row["outcome"] for row in found["corpus"]}
    assert outcomes == {"100 MB.png": "it has 95.37 MiB, more than 64.00 MiB"}
    assert found["mutations"]["count"] == 5
    assert found["mutations"]["died"] == 0
    assert [row["outcome"] for row in found["largest"]] == ["decoded, 64 x 36"] * 3 + ["(1, 3, 224, 224)"]
    assert "100 MB.png" in shown


def test_predictor(run):
    found, _ = run("predictor", "--batch", 2, "--files", 5, "--workers", 0, "--repeats", 1)
    assert [(row["method"], row["workers"]) for row in found["rows"]] == [("ramen", 0), ("waiting", 0)]
    for row in found["rows"]:
        assert row["of_the_slower"] == row["classify"] / min(row["decoding"], row["alone"]) > 0


def test_store(parts, run, monkeypatch):
    monkeypatch.setattr(parts, "random_classifier", lambda *given: testing.small_classifier())
    found, _ = run("store", "--batch", 4, "--batches", 4, "--entries", 50)
    assert found["ratio"] == found["with_ms"] / found["without_ms"]
    assert found["disk_bytes"] > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="need Linux")
def test_the_peak_is_that_of_one_fork(parts):
    """Memory that was given back counts, that of other runs does not."""

    def holding(megabytes: int) -> str:
        return str(len(bytearray(megabytes * 10**6)))

    small, large, again = (parts.in_forks(lambda m=m: holding(m)) for m in (1, 150, 1))
    assert large["outcome"] == "150000000"
    assert 140 < large["megabytes"] < 170
    assert max(small["megabytes"], again["megabytes"]) < 20
    died = parts.in_forks(lambda: os.kill(os.getpid(), 9) or "")
    assert died["outcome"] == "died with status 9"
    assert not parts.is_within_goal(died)
    assert not parts.is_within_goal(large | {"milliseconds": 10})
    assert parts.is_within_goal(small | {"milliseconds": 10})
