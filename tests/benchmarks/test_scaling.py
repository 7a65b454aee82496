"""The benchmark of groups of processes, and the page about it."""

import json
from pathlib import Path

import pytest

from tests.helpers.benchmark_scripts import load_benchmark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"


def test_the_page_has_the_figures_of_the_model():
    page, text = load_benchmark("scaling_page"), PAGE.read_text()
    for table in (page.memory_table(), page.traffic_table(), page.link_table(), page.measured_table()):
        assert table in text
    words = " ".join(text.split())
    for example in page.examples():
        assert example in words


def test_measured_steps_are_within_a_quarter_of_the_model():
    """In the figures that the page shows; ``python benchmarks/scaling.py`` makes new ones."""
    page = load_benchmark("scaling_page")
    rows = json.loads((page.RESULTS / "scaling_cpu.json").read_text())["rows"]
    assert [row["processes"] for row in rows] == [1, 2, 4, 8]
    for row in rows:
        assert row["ratio"] == pytest.approx(1, abs=0.25)
        assert row["measured_sent_bytes"] == pytest.approx(row["modelled_sent_bytes"], rel=0.05)


def test_rates_are_fitted():
    scaling = load_benchmark("scaling")
    work = [
        {"step": 1.0, "rows": rows, "columns": columns} for rows, columns in ((1, 5), (4, 2), (9, 9), (2, 1))
    ]
    spent = [0.5 + 2 * one["rows"] for one in work]
    assert scaling._fitted(work, spent) == pytest.approx({"step": 0.5, "rows": 2.0, "columns": 0.0}, abs=1e-9)


def test_it_compares_small_steps(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend("benchmarks")
    scaling = load_benchmark("scaling")
    sizes = {"classes": 4, "capacity": 6, "gradient": 104, "embedding": 8, "images": 3, "steps": 4}
    settings = scaling.Settings(**sizes)
    (rates,) = [scaling.rates_of_one_process(settings)]
    assert set(rates) == {"insert", "select", "aggregate"}
    assert all(rate >= 0 for parts in rates.values() for rate in parts.values())
    parts = dict.fromkeys(scaling.STAGES, 1.0)
    row = {"processes": 1, "measured_ms": parts, "modelled_ms": parts, "ratio": 1.0}
    row |= {"measured_sent_bytes": 1e6, "modelled_sent_bytes": 2e6}
    monkeypatch.setattr(scaling, "compare", lambda settings, processes: {"rates": rates, "rows": [row]})
    out = tmp_path / "scaling.json"
    monkeypatch.setattr("sys.argv", ["scaling.py", "--images", "3", "--out", str(out)])
    scaling.main()
    assert json.loads(out.read_text())["settings"]["images"] == 3
    assert "1.00 / 2.00" in capsys.readouterr().out
