"""What a step costs apart from time: counts of a small model, and their comparison."""

import json

import pytest

from ramen.methods import tent
from tests.helpers.benchmark_scripts import load_benchmark


@pytest.fixture
def step_cost():
    return load_benchmark("step_cost")


def test_counts_are_the_same_each_time_and_grow_with_what_a_step_does(step_cost, monkeypatch):
    first, second = step_cost.count("tent"), step_cost.count("tent")
    assert first == second
    adapt = tent.Tent.adapt

    def slower(self, images, usable):
        """Ten additions and two reads by the host more."""
        for _ in range(10):
            images = images + 0
        assert images.sum().item() == images.sum().tolist()
        return adapt(self, images, usable)

    monkeypatch.setattr(tent.Tent, "adapt", slower)
    grown = step_cost.count("tent")
    assert grown["operations"] >= first["operations"] + 4 * 10
    assert grown["host_reads"] >= first["host_reads"] + 4 * 2
    assert grown["megabytes"] > first["megabytes"]


def test_a_step_that_costs_more_is_found(step_cost, tmp_path, monkeypatch, capsys):
    one = {"operations": 100, "host_reads": 4, "megabytes": 10.0}
    old, new = tmp_path / "old.json", tmp_path / "new.json"

    def compared(**changes):
        old.write_text(json.dumps({"methods": {"tent": one, "moetta": one, "gone": one}}))
        new.write_text(json.dumps({"methods": dict.fromkeys(("tent", "moetta"), one | changes)}))
        monkeypatch.setattr("sys.argv", ["step_cost.py", "--compare", str(old), str(new)])
        with pytest.raises(SystemExit) as ended:
            step_cost.main()
        return ended.value.code, capsys.readouterr().out.count("MORE")

    assert compared() == (0, 0)
    assert compared(operations=105) == (0, 0)
    assert compared(operations=106) == (1, 1)  # MoETTA's kernels went
    assert compared(megabytes=22.1) == (1, 2)
    assert compared(host_reads=5) == (1, 2)
