"""The studies are scripts that import each other, so their folder is where Python looks for them."""

import sys
from pathlib import Path

import pytest

from ramen.data.catalogue import load
from ramen.models.tiny_clip.model import load_tiny

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))


@pytest.fixture(scope="module")
def data():
    return load("tiny", domains=["fog", "neon", "clean"], pictures=30)


@pytest.fixture(scope="module")
def classifier(data):
    return load_tiny(data.classes)


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs a study's command line; returns what it printed and the file that it wrote."""

    def run(study, *words):
        out = tmp_path / "numbers.json"
        small = ["--domain", "fog", "--domain", "neon", "--data-set", "pictures=20", "--device", "cpu"]
        monkeypatch.setattr("sys.argv", ["study.py", *words, *small, "--out", str(out)])
        study.main()
        return capsys.readouterr().out, out

    return run
