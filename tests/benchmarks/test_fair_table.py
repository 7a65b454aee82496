"""The benchmark that searches and tests all methods alike, on a few small images."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ramen.data.corruptions import EXTRA_CORRUPTIONS
from ramen.experiments.tune import TunedValues
from tests.helpers.benchmark_scripts import load_benchmark

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def images(tmp_path):
    """A file of ten images, clean and in one domain."""
    pixels = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    file = tmp_path / "images.npz"
    np.savez(file, labels=np.arange(10) % 2, clean=pixels, fog=pixels // 2)
    return file


@pytest.fixture
def divided(images, tmp_path):
    """The files for tests and searches."""
    tests, searches = tmp_path / "tests.npz", tmp_path / "searches.npz"
    load_benchmark("fair_table_arrays").divide(images, tests, searches, 6, 4, 0)
    return tests, searches


def test_no_image_is_for_both_tests_and_searches(images, divided):
    tests, searches = (dict(np.load(file)) for file in divided)
    whole = np.load(images)
    assert set(tests) == {"labels", "fog"}
    assert (tests["fog"] == whole["fog"][:6]).all()
    assert set(searches) == {"labels", *EXTRA_CORRUPTIONS}
    assert (searches["labels"] == whole["labels"][6:]).all()
    assert all(len(searches[name]) == 4 for name in searches)


def run(divided, tmp_path, *words):
    """The file of numbers that the command writes, and what it prints."""
    tests, searches = divided
    command = [sys.executable, str(BENCHMARKS / "fair_table.py"), "--model", "tiny", "--classes", "cat,dog"]
    command += ["--tests", str(tests), "--searches", str(searches), "--store", str(tmp_path / "store")]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "fair.json"), *words], check=True, capture_output=True, text=True
    )
    return json.loads((tmp_path / "fair.json").read_text()), done.stdout


def test_tests_use_what_the_search_chose(divided, tmp_path):
    words = "--method", "tda", "--method", "ensemble", "--stream", "correlated", "--leave-out"
    found, shown = run(divided, tmp_path, *words, "correlated:ensemble")
    assert set(found["streams"]) == {"correlated"}
    correlated = found["streams"]["correlated"]
    assert [(test["method"], test["seed"]) for test in correlated["tests"]] == [
        ("tda", seed) for seed in (0, 1, 2)
    ]
    search = correlated["searches"]["methods"]["tda"]
    assert search["chosen"] == TunedValues.read(tmp_path / "store" / "tuned-correlated.json").row("tda")
    best = search["accuracies"].index(max(search["accuracies"]))
    alphas, betas = search["space"].values()
    assert list(search["chosen"].values()) == [alphas[best // len(betas)], betas[best % len(betas)]]
    for test in correlated["tests"]:
        assert search["chosen"].items() <= test["parameters"].items()
    assert correlated["searches"]["domains"] == list(EXTRA_CORRUPTIONS)
    assert shown.count("finished in") == 8 + 3

    again, shown = run(divided, tmp_path, *words, "correlated:ensemble")
    assert again == found
    assert not shown  # nothing is repeated
