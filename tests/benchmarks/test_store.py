"""The benchmark of durable state, on a small tower."""

import json

from ramen import testing
from tests.helpers.benchmark_scripts import load_benchmark


def test_it_measures_saving_and_opening(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend("benchmarks")
    store = load_benchmark("store")
    monkeypatch.setattr(
        store, "random_classifier", lambda model, classes, device, dtype: testing.small_classifier()
    )
    out = tmp_path / "store.json"
    words = [
        "--batch",
        "4",
        "--batches",
        "4",
        "--entries",
        "50",
        "--folder",
        str(tmp_path),
        "--out",
        str(out),
    ]
    monkeypatch.setattr("sys.argv", ["store.py", *words])
    store.main()
    result = json.loads(out.read_text())
    spent = result["milliseconds_a_batch"]
    assert result["ratio"] == spent["with"] / spent["without"]
    assert result["disk_bytes"] > 0
    assert "opening it again" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["store.json"]
