"""The cost benchmark, on a small tower."""

import json

import pytest

from ramen import testing
from tests.helpers.benchmark_scripts import load_benchmark


@pytest.fixture
def cost(monkeypatch):
    module = load_benchmark("cost")
    monkeypatch.setattr(
        module, "random_classifier", lambda model, classes, device, dtype: testing.small_classifier()
    )
    return module


def run(cost, monkeypatch, tmp_path, *methods):
    """The results of the benchmark's command line for these methods."""
    out = tmp_path / "cost.json"
    words = [word for name in methods for word in ("--run", name)]
    monkeypatch.setattr("sys.argv", ["cost.py", "--batch", "4", "--repeats", "2", "--out", str(out), *words])
    cost.main()
    return json.loads(out.read_text())


def test_every_named_method_is_timed(cost, monkeypatch, tmp_path, capsys):
    """Every call takes 0.1 s here: WATT's time is that of all its rounds, though one is run."""

    def seconds(call, device):
        call()
        return 0.1

    monkeypatch.setattr(cost, "seconds", seconds)
    monkeypatch.setattr(cost, "gradient_times", lambda *given: [0.3])
    results = run(cost, monkeypatch, tmp_path, "tda", "rotta", "watt")
    assert {name: row["forwards"] for name, row in results["methods"].items()} == {
        "tda": 1,
        "rotta": 1,
        "watt": pytest.approx(71 / 15),  # five rounds of two steps for each of seven templates
    }
    assert "71 / 70" in capsys.readouterr().out
    assert results["backward_milliseconds"] == pytest.approx(200)  # 300 with the forward pass
