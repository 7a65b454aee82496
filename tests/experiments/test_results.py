import math
import statistics
from pathlib import Path

import pytest

import ramen
from ramen.experiments.results import Rows, all_rows, collect, groups_of
from ramen.experiments.store import write_result
from tests.fakes.results import DOMAINS, sample_result


def test_results_of_folders_and_files_once_each(tmp_path) -> None:
    write_result(tmp_path / "a" / "b" / "one.json", sample_result(seed=0))
    write_result(tmp_path / "a" / "two.json", sample_result(seed=1))
    write_result(tmp_path / "three.json", sample_result("tent"))
    found = collect([tmp_path / "a", tmp_path / "three.json", tmp_path / "a" / "two.json"])
    kinds = [(one["experiment"]["method"], one["experiment"]["seed"]) for one in found.results]
    assert sorted(kinds) == [("ramen", 0), ("ramen", 1), ("tent", 0)]
    assert found.warnings == []


def test_what_a_run_under_way_keeps_is_no_result(tmp_path) -> None:
    write_result(tmp_path / "run.json", sample_result())
    hidden = tmp_path / ".ramen-seed1.partial" / "state.json"
    hidden.parent.mkdir()
    hidden.write_text("{}")
    found = collect([tmp_path])
    assert len(found.results) == 1
    assert found.warnings == []


def test_damaged_files_are_named_and_the_rest_is_kept(tmp_path) -> None:
    write_result(tmp_path / "good.json", sample_result())
    (tmp_path / "cut.json").write_text('{"schema": 1, "ki')
    lacking = sample_result("tent")
    del lacking["scores"]["changes"]
    write_result(tmp_path / "lacking.json", lacking)
    found = collect([tmp_path])
    assert len(found.results) == 1
    cut, lacks = sorted(found.warnings)
    assert "cut.json is damaged" in cut
    assert "lacking.json is damaged (scores has no 'changes')" in lacks
    assert "run the experiment again" in lacks


def test_nothing_left_is_an_error_that_names_what_was_wrong(tmp_path) -> None:
    (tmp_path / "cut.json").write_text("{")
    with pytest.raises(ValueError, match=r"there are no results in .*\n.*cut.json is damaged"):
        collect([tmp_path])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        collect([tmp_path / "nowhere"])


def test_of_two_runs_of_one_experiment_the_newer_counts(tmp_path) -> None:
    old, new = sample_result(average=50.0), sample_result(average=60.0)
    new["provenance"]["finished"] = "2026-01-02T00:00:00+00:00"
    write_result(tmp_path / "b-old.json", old)
    write_result(tmp_path / "a-new.json", new)
    write_result(tmp_path / "c-copy.json", new)  # the same again is not worth a word
    found = collect([tmp_path])
    assert found.results == [new]
    (warning,) = found.warnings
    assert "b-old.json is ignored" in warning
    assert "a-new.json is a newer run" in warning


def test_seeds_of_one_experiment_make_a_row() -> None:
    results = [sample_result(seed=seed, average=60.0 + seed) for seed in (2, 0, 1)]
    others = [sample_result("tent"), sample_result(parameters={"topk": 7}), sample_result(batch=50)]
    rows = Rows(groups_of([*results, *others]))
    assert rows.seeds == [[0, 1, 2], [0], [0], [0]]
    averages = [one["scores"]["average"] for one in results]
    assert rows.over("scores.average")[0] == pytest.approx(sum(averages) / 3)
    assert rows.over("scores.average", "std")[0] == pytest.approx(statistics.stdev(averages))
    assert rows.over("scores.domains.fog")[0] == pytest.approx(
        statistics.fmean(one["scores"]["domains"]["fog"] for one in results)
    )
    assert math.isnan(rows.over("scores.average", "std")[1])
    assert rows.over("scores.zero_shot.average")[0] == 55.0
    assert rows.over("scores.difference.points")[0] == pytest.approx(sum(averages) / 3 - 55.0)


def test_what_a_run_lacks_is_not_a_number() -> None:
    old, new = sample_result(seed=0), sample_result(seed=1)
    new["scores"]["nll"] = 1.5
    rows = Rows([[old, new], [sample_result("tent")]])
    assert rows.column("scores.nll").isna().tolist() == [True, False, True]
    assert rows.over("scores.nll").isna().all()
    assert rows.over("scores.nothing").isna().all()
    assert rows.only([1]).names == ["Tent"]


def test_a_default_that_is_spelled_out_is_the_same_experiment() -> None:
    plain, spelled = sample_result(seed=0), sample_result(seed=1)
    spelled["experiment"]["parameters"] = {
        **plain["experiment"]["parameters"],
        "topk": "auto",
        "fifo": "exact",
    }
    (one,) = groups_of([plain, spelled])
    assert len(one) == 2


def test_settings_are_kept_apart_and_ordered_as_in_the_paper() -> None:
    results = [sample_result(name) for name in ("ramen", "mine", "tent", "clip")]
    results += [sample_result("ramen", protocol="single"), sample_result("tent", model="ViT-B-16/openai")]
    assert [rows.names for rows in all_rows(results)] == [
        ["CLIP", "Tent", "Ramen", "mine"],
        ["Ramen"],
        ["Tent"],
    ]


def test_rows_with_the_same_title_say_what_differs() -> None:
    results = [
        sample_result("tent"),
        sample_result(parameters={}),
        sample_result(parameters={"topk": 7}),
        sample_result(parameters={"balance": False}, label="w/o PB"),
        sample_result(parameters={}, batch=50),
    ]
    assert Rows(groups_of(results)).names == [
        "Tent",
        "Ramen (topk=auto, batch=100)",
        "Ramen (topk=7, batch=100)",
        "w/o PB",
        "Ramen (topk=auto, batch=50)",
    ]


def test_a_folder_is_a_frame(tmp_path) -> None:
    """What everybody analyses with: one row a run, a column per entry."""
    for seed in range(3):
        write_result(tmp_path / f"ramen-{seed}.json", sample_result(seed=seed))
        write_result(tmp_path / f"tent-{seed}.json", sample_result("tent", seed=seed))
    (tmp_path / "cut.json").write_text("{")
    with pytest.warns(UserWarning, match=r"cut\.json"):
        runs = ramen.results(tmp_path)
    table = runs.groupby("title")["scores.average"].agg(["mean", "std", "count"])
    own = [sample_result("tent", seed=seed)["scores"]["average"] for seed in range(3)]
    assert table.loc["Tent", "mean"] == pytest.approx(statistics.fmean(own))
    assert table["count"].tolist() == [3, 3]
    assert list(runs.filter(like="scores.domains.").columns) == [f"scores.domains.{name}" for name in DOMAINS]
    assert runs["setting"].unique().tolist() == ["CIFAR-10-C, ViT-B-32/openai, mixed stream, severity 5"]
    assert Path(runs["file"][0]).name.startswith(runs["experiment.method"][0])
    assert runs["experiment.parameters.lr"].tolist() == [0.01] * 6
