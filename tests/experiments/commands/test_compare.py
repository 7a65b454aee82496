"""``ramen compare`` with made-up results."""

import json
from pathlib import Path

import pytest

from ramen.experiments import workers
from ramen.experiments.store import write_result
from tests.fakes.published_results import published_result
from tests.fakes.results import sample_result
from tests.helpers.ramen_command import ramen


@pytest.fixture
def store(tmp_path) -> Path:
    for method in ("clip", "tent", "ramen"):
        for seed in (0, 1):
            write_result(tmp_path / f"{method}{seed}.json", published_result(method, seed=seed, offset=seed))
    return tmp_path


def test_averages_come_first_in_a_narrow_terminal(store) -> None:
    text = ramen("compare", store, columns=80).stdout
    assert text.index("Averages over domains") < text.index("Accuracy in %")
    assert max(map(len, text.splitlines())) <= 80


def test_damaged_files_are_reported_on_standard_error(store) -> None:
    (store / "cut.json").write_text("{")
    result = ramen("compare", store)
    assert "cut.json is damaged" in result.stderr
    assert "damaged" not in result.stdout


def test_a_file_in_place_of_the_terminal(store, tmp_path) -> None:
    ramen("compare", store, "--out", tmp_path / "out" / "table.tex")
    assert (tmp_path / "out" / "table.tex").read_text().count("\\begin{tabular}") == 3


def test_compare_runs_what_is_asked_for_and_reports_what_cannot_run(tmp_path, monkeypatch) -> None:
    asked = []

    def run_all(experiments, out, *, on_missing, **where):
        asked.extend(experiments)
        assert (out, on_missing) == (tmp_path / "s", "skip")
        results = []
        for one in experiments:
            if one.method == "watt":
                results.append({"kind": "skipped", "experiment": one.identity(), "reason": "no templates"})
                continue
            results.append(sample_result(one.method, seed=one.seed))
            results[-1]["experiment"] = one.identity()
        return results

    monkeypatch.setattr(workers, "run_all", run_all)
    options = ("--run", "--store", tmp_path / "s", "--seeds", 2, "--set", "ramen.topk=2", "--limit", 50)
    result = ramen("compare", *options, "--method", "ramen", "--method", "watt", "--json")
    assert [(one.method, one.seed) for one in asked] == [("ramen", 0), ("ramen", 1), ("watt", 0), ("watt", 1)]
    assert asked[0].parameters["topk"] == 2
    assert asked[0].protocol_parameters == {"limit": 50}
    content = json.loads(result.stdout)
    assert content["not_run"] == ["WATT-S: no templates"]
    assert {row["method"] for row in content["tables"][0]["rows"]} == {"ramen"}
    assert "not run: WATT-S" in result.stderr

    asked.clear()
    ramen("compare", "--run", "--store", tmp_path / "s", code=0)
    assert [one.method for one in asked][:2] == ["clip", "ensemble"]
    assert len(asked) == 13
