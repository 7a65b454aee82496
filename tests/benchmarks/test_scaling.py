"""The benchmark of groups of processes, and the page about it."""

import json
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.helpers.benchmark_scripts import load_benchmark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"


def test_the_page_has_the_figures_of_the_model():
    page, text = load_benchmark("scaling_page"), PAGE.read_text()
    tables = page.memory_table(), page.traffic_table(), page.link_table(), page.measured_table()
    for table in (*tables, page.whole_table()):
        assert table in text
    words = " ".join(text.split())
    for example in (*page.examples(), page.one_machine()):
        assert example in words


def test_measured_steps_are_within_a_quarter_of_the_model():
    """In the figures that the page shows; ``python benchmarks/scaling.py`` makes new ones."""
    page = load_benchmark("scaling_page")
    rows = json.loads((page.RESULTS / "scaling_cpu.json").read_text())["rows"]
    assert [row["processes"] for row in rows] == [1, 2, 4, 8]
    for row in rows:
        assert row["ratio"] == pytest.approx(1, abs=0.25)
        assert row["measured_sent_bytes"] == pytest.approx(row["modelled_sent_bytes"], rel=0.05)


def test_a_group_takes_as_much_longer_on_a_gpu_in_every_setting():
    """In the figures that the page shows; the model has one number for all."""
    page = load_benchmark("scaling_page")
    for row in page.whole_steps():
        modelled = row["alone_ms"] + 1000 * page.launching_seconds()
        assert row["group_ms"] == pytest.approx(modelled, rel=0.25)


def test_rates_are_fitted():
    scaling = load_benchmark("scaling_steps")
    work = [
        {"step": 1.0, "rows": rows, "columns": columns} for rows, columns in ((1, 5), (4, 2), (9, 9), (2, 1))
    ]
    spent = [0.5 + 2 * one["rows"] for one in work]
    assert scaling.fitted(work, spent) == pytest.approx({"step": 0.5, "rows": 2.0, "columns": 0.0}, abs=1e-9)
    for one in work:
        one["never"] = 0.0
    assert scaling.fitted(work, spent)["never"] == 0.0


def alone_in_a_group(steps, tasks):
    """What ``run_group`` returns for one process, without starting one."""
    peers = steps.TimedPeers(dist.group.WORLD, timeout=60)
    peers.now = tasks[0][1].now
    measure = {
        "rates": lambda peers, settings: steps.rates_of_one_process(settings),
        "exchanges": steps.measure_exchanges,
        "steps": steps.measure_in_group,
    }
    return [[measure[name](peers, settings) for name, settings in tasks]]


def test_it_compares_small_steps(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend("benchmarks")
    scaling = load_benchmark("scaling")
    steps = scaling.scaling_steps
    monkeypatch.setattr(steps, "_EXCHANGED", ((1 << 10, 6), (1 << 17, 4)))
    meeting = f"file://{tmp_path / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        monkeypatch.setattr(scaling, "run_group", lambda count, tasks: alone_in_a_group(steps, tasks))
        out = tmp_path / "scaling.json"
        sizes = {"classes": 4, "capacity": 6, "gradient": 104, "embedding": 8, "steps": 6, "processes": 1}
        given = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
        monkeypatch.setattr("sys.argv", ["scaling.py", "--images", "3", "4", *given, "--out", str(out)])
        scaling.main()
    finally:
        dist.destroy_process_group()
    found = json.loads(out.read_text())
    assert found["settings"]["classes"] == 4
    assert [(row["processes"], row["images"]) for row in found["rows"]] == [(1, 3), (1, 4)]
    assert {stage for row in found["rows"] for stage in row["measured_ms"]} == set(scaling.STAGES)
    assert all(rate >= 0 for parts in found["rates"].values() for rate in parts.values())
    assert all(parts["in a group"] >= 0 for parts in found["rates"].values())
    assert all(row["entries"] == [24] for row in found["rows"])
    assert "0.00 / 0.00" in capsys.readouterr().out
