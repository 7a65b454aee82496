"""The page of the fair table shows the committed results, and its marks and reasons follow from the runs."""

import copy

import pytest

from tests.helpers.benchmark_scripts import load_benchmark

DOMAINS = {"fog": 50.0, "snow": 80.0, "neon": 20.0}


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    return load_benchmark("fair_table_page")


def run(method, seed, changed, last=50.0, broken=0, repaired=0):
    """A test run whose accuracies differ from zero-shot by so many points."""
    domains = {name: value + changed.get(name, 0) for name, value in DOMAINS.items()}
    return {
        "method": method,
        "seed": seed,
        "images": 100,
        "zero_shot": 50.0,
        "zero_shot_domains": dict(DOMAINS),
        "average": sum(domains.values()) / 3,
        "domains": domains,
        "changes": {"repaired": repaired, "broken": broken},
        "tail": {"last": last},
        "passes": {"forward": 1, "backward": 0},
    }


def results(*tests, accuracies=(60.0,)):
    """Results of the same runs on every stream."""
    methods = {one["method"] for one in tests}
    found = {"accuracies": list(accuracies), "chosen": {"lr": 0.1}}
    stream = {
        "searches": {"zero_shot": [60.0], "methods": {name: copy.deepcopy(found) for name in methods}},
        "tests": list(tests),
    }
    return {"streams": dict.fromkeys(("mixed", "single", "correlated", "one"), stream)}


def rows_of(page, *tests, **options):
    zero_shot = [run("ensemble", seed, {}) for seed in range(3)]
    return page.streams_of(results(*zero_shot, *tests, **options))["mixed"]


def test_marks_are_those_of_paired_tests(page):
    """t is 175 for TDA; 3.1 for SAR, too little; 5.2 in the end: p 0.035, too much after the correction."""
    steady = [run("tda", seed, {"fog": 3 + 0.03 * seed}) for seed in range(3)]
    likely = [run("sar", seed, {"fog": 3 + 1.7 * (seed - 1)}) for seed in range(3)]
    never = [run("dmn", seed, {}) for seed in range(3)]
    worse = [run("lame", seed, {"fog": -3 + 1.7 * (seed - 1)}) for seed in range(3)]
    unsteady = [run("tent", seed, {"fog": 20.0 * (seed - 0.9)}) for seed in range(3)]
    rows = rows_of(page, *steady, *likely, *never, *worse, *unsteady)
    marks = {name: rows.mark(name) for name in rows.rows}
    assert marks == {"ensemble": "", "tda": " ▲", "sar": "", "dmn": "", "lame": "", "tent": ""}
    surer = [run("sar", seed, {"fog": 3 + (seed - 1)}) for seed in range(3)]
    fallen = [run("lame", seed, {"fog": -3 + (seed - 1)}) for seed in range(3)]
    rows = rows_of(page, *surer, *fallen)
    assert (rows.mark("sar"), rows.mark("lame")) == (" △", " ▽")
