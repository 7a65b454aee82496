"""A search: the best mean accuracy wins, costs add up, and nothing that is tested is seen."""

import json

import pytest

from ramen.data.corruptions import EXTRA_CORRUPTIONS
from ramen.data.registry import describe, list_datasets, load
from ramen.experiments.plan.experiment import plan
from ramen.experiments.report.studies import problem
from ramen.experiments.run.results import read_result, write_result
from ramen.experiments.tune.search import plan_search, search_result, tuning_domains
from ramen.experiments.tune.search_spaces import SearchSpaces
from tests.fakes.results import sample_result

SPACES = SearchSpaces(3, {"tda": {"positive_alpha": (0.5, 1.0, 2.0)}}, {"lr": (1e-3, 1e-2, 1e-1)})
OPTIONS = {"data_options": {"domains": list(EXTRA_CORRUPTIONS)}, "seeds": (1000, 1001)}


def planned(*methods, **changes):
    return plan_search(plan(methods, **{**OPTIONS, **changes}), SPACES)


def answers(search, accuracy):
    """Made-up results; ``accuracy`` of an experiment decides its scores."""
    results = []
    for run in search.experiments:
        result = sample_result(
            run.method, seed=run.seed, data="tiny", model="tiny", domains=EXTRA_CORRUPTIONS
        )
        result["experiment"] = run.identity()
        result["scores"]["average"] = accuracy(run)
        result["cost"] |= {"images": 10, "seconds": {"predict": 2.0, "read": 0.5}}
        result["cost"]["passes"] = {"forward": 2, "backward": 1}
        results.append(result)
    return results


def test_the_highest_mean_over_seeds_wins(tmp_path):
    table = {
        (1e-3, 1000): 50.0,
        (1e-3, 1001): 70.0,  # the best single seed
        (1e-2, 1000): 62.0,
        (1e-2, 1001): 62.0,
        (1e-1, 1000): 10.0,
        (1e-1, 1001): 69.0,
    }
    search = planned("tent", "clip")
    assert [run.parameters.get("lr") for run in search.experiments] == [1e-3] * 2 + [1e-2] * 2 + [
        1e-1
    ] * 2 + [None] * 2

    def accuracy(run):
        return 55.0 if run.method == "clip" else table[run.parameters["lr"], run.seed]

    result = search_result(search, answers(search, accuracy))
    write_result(tmp_path / "search.json", result)
    assert read_result(tmp_path / "search.json") == result
    data = result["data"]
    tent, clip = data["methods"]["tent"], data["methods"]["clip"]
    assert [trial["accuracy"] for trial in tent["trials"]] == [60.0, 62.0, 39.5]
    assert tent["trials"][0]["seeds"] == [50.0, 70.0]
    assert (tent["best"], tent["chosen"]) == (1, {"lr": 1e-2})
    assert tent["space"] == {"lr": [1e-3, 1e-2, 1e-1]}
    assert clip["chosen"] == {}
    assert clip["origin"] == "nothing to choose"
    one = {"images": 10, "seconds": 2.5, "forward_passes": 20, "backward_passes": 10}
    assert tent["trials"][0]["cost"] == {name: 2 * value for name, value in one.items()}
    assert tent["cost"] == {name: 6 * value for name, value in one.items()}
    assert clip["cost"] == {name: 2 * value for name, value in one.items()}
    assert data["cost"] == {name: 8 * value for name, value in one.items()}
    assert data["domains"] == list(EXTRA_CORRUPTIONS)
    assert (data["seeds"], data["budget"], data["search"]) == ([1000, 1001], 3, search.key())
    assert problem(result) is None  # `ramen report` shows it
    (row,) = [row for row in result["tables"][0]["rows"] if row[0] == "tent"]
    assert row[1:6] == ["lr=0.01", "62.00", "+7.00", "39.50", "3"]


def test_of_equal_settings_the_first_wins():
    search = planned("tda")
    result = search_result(
        search, answers(search, lambda run: 60.0 + 1e-12 * run.parameters["positive_alpha"])
    )
    assert result["data"]["methods"]["tda"]["best"] == 0


def test_a_method_that_cannot_run_is_skipped():
    search = planned("tda", "tent")
    results = answers(search, lambda run: 60.0)
    results[:6] = [{"kind": "skipped", "experiment": {}, "reason": "it needs text"}] * 6
    data = search_result(search, results)["data"]
    assert data["skipped"] == {"tda": "it needs text"}
    assert list(data["methods"]) == ["tent"]
    only = planned("tda")
    with pytest.raises(ValueError, match="no method could run: tda: it needs text"):
        search_result(only, results[:6])


def test_the_key_changes_with_what_decides_the_choice():
    keys = {
        planned("tent").key(),
        planned("tda").key(),
        planned("tent", seeds=(1000,)).key(),
        planned("tent", batch=7).key(),
        planned("tent", protocol="single").key(),
        planned("tent", data_options={"domains": ["spatter"]}).key(),
        planned("tent", settings=["optimizer=sgd"]).key(),
        plan_search(plan(["tent"], **OPTIONS), SearchSpaces(1, {}, {"lr": (1.0,)})).key(),
    }
    assert len(keys) == 8
    assert planned("tent").key() == planned("tent").key()
    json.dumps(planned("tent").identity(), allow_nan=False)


def test_what_is_searched_cannot_be_set():
    with pytest.raises(ValueError, match=r"--set tent.lr: this parameter is to be chosen by the search"):
        planned("tent", settings=["lr=0.5"])
    free = planned("tent", settings=["optimizer=sgd"])
    assert all(run.parameters["optimizer"] == "sgd" for run in free.experiments)


@pytest.mark.parametrize("data", list_datasets())
def test_no_extra_domain_is_tested_by_default(data):
    extra = describe(data).extra_domains
    if data == "tiny":
        assert not {domain.name for domain in load(data, pictures=1).domains} & set(extra)
    assert extra == (EXTRA_CORRUPTIONS if data == "tiny" or data.endswith(("0c", "netc", "5k")) else ())
    if extra:
        assert tuning_domains(data, None) == list(extra)
        assert tuning_domains(data, ["spatter"]) == ["spatter"]
        with pytest.raises(ValueError, match=r"--domain must be one of .* for tests, got fog"):
            tuning_domains(data, ["spatter", "fog"])
    else:
        assert tuning_domains(data, ["fog"]) == ["fog"]
        with pytest.raises(ValueError, match=r"--domain must name domains that will not be tested"):
            tuning_domains(data, None)
