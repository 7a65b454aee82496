"""The numbers on the page."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ramen.experiments import paper
from ramen.experiments.presets import find_preset
from ramen.experiments.values import plain
from tests.experiments.pages import report
from tests.fakes.results import sample_result


@pytest.fixture
def drawn() -> None:
    """Asked for by tests that look at figures."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is most of the time, and most tests here read tables."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("ramen.experiments.report.page_svg", lambda figure: "<svg/>")


def whole_stream(method: str, average: float, **changed: Any) -> dict[str, Any]:
    """As if the paper's stream had been run with its settings, but for those that are ``changed``."""
    setting, preset = paper.SETTINGS["cifar10c"], find_preset(None, "cifar10c", "ViT-B-32/openai")
    parameters = {**plain(preset.row(method, "mixed")), **changed}
    run = sample_result(method, average=average, domains=setting.domains, parameters=parameters)
    run["scores"]["images"] = dict.fromkeys(setting.domains, setting.images // len(setting.domains))
    run["scores"]["average"] = average
    return run


def test_means_and_deviations_are_those_of_the_seeds(tmp_path: Path) -> None:
    runs = [sample_result("tent", seed=seed) for seed in range(3)]
    for run, fog in zip(runs, (70.0, 71.0, 73.0), strict=True):
        run["scores"]["domains"]["fog"] = fog
        run["scores"]["average"] = fog - 10
        run["scores"]["difference"] = {"points": fog - 65, "margin": fog - 70}
    _, row = report(tmp_path, runs).table("setting-1-accuracy")
    # by hand: mean 71 1/3, squares 16/9 + 1/9 + 25/9 = 42/9, over two: 7/3, its root 1.5275; margins 0, 1, 3
    assert row["Average"] == "61.33 ± 1.53"
    assert row["fog"] == "71.3 ± 1.5"
    assert row["Above zero-shot"] == "+6.33 ± 1.33"
    assert row["Seeds"] == "0 1 2"


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    run = sample_result("tent")
    run["scores"]["average"] = 61.25
    _, row = report(tmp_path, [run]).table("setting-1-accuracy")
    assert row["Average"] == "61.25"


def test_zero_shot_has_a_row_although_nobody_ran_it(tmp_path: Path) -> None:
    """From the run with the most seeds: each records what the classifier does alone on its stream."""
    runs = [sample_result("tent", seed=seed) for seed in range(2)]
    for run, fog in zip(runs, (40.0, 42.0), strict=True):
        run["scores"]["zero_shot"]["domains"]["fog"] = fog
        run["scores"]["zero_shot"]["average"] = fog + 10
    reader = report(tmp_path, [*runs, sample_result("sar")])
    zero_shot, *others = reader.table("setting-1-accuracy")
    assert [row["Method"] for row in others] == ["Tent", "SAR"]
    assert zero_shot["Method"] == "Zero-shot"
    assert zero_shot["Average"] == "51.00 ± 1.41"
    assert zero_shot["fog"] == "41.0 ± 1.4"
    assert zero_shot["Above zero-shot"] == "+0.00 ± 0.00"
    assert zero_shot["Seeds"] == "0 1"
    assert any(words.endswith("as recorded with the runs of Tent.") for words in reader.words)


def test_zero_shot_is_not_there_twice(tmp_path: Path) -> None:
    reader = report(tmp_path, [sample_result("ensemble", average=55.0), sample_result("tent")])
    assert [row["Method"] for row in reader.table("setting-1-accuracy")] == ["Ensemble", "Tent"]


def test_reading_is_not_charged_to_a_method(
    tmp_path: Path, drawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs first reads from the disk: it says nothing about the method."""
    shown: dict[str, Any] = {}

    def stage_bars(stages: dict[str, Any], **given: object) -> Figure:
        shown.update(stages)
        return Figure()

    monkeypatch.setattr("ramen.experiments.figures.stage_bars", stage_bars)
    runs = [sample_result("tent"), sample_result("ramen")]
    runs[0]["cost"]["seconds"]["read"] = 36.0
    runs[1]["cost"]["seconds"]["read"] = 0.6
    reader = report(tmp_path, runs)
    assert shown["Tent"] == shown["Ramen"]
    assert "read" not in shown["Tent"]
    assert any("it took 1 to 60 ms per image" in words for words in reader.words)


def test_what_was_repaired_and_broken_is_a_share_of_all_images(tmp_path: Path) -> None:
    run = sample_result("tent")
    run["scores"]["changes"] = {"both_right": 100, "repaired": 30, "broken": 10, "both_wrong": 60}
    (row,) = report(tmp_path, [run]).table("setting-1-changes")
    assert [row[f"{name}, %"] for name in ("Repaired", "Broken", "Net")] == [
        "15.00",
        "5.00",
        "+10.00",
    ]
    assert row["Repaired / broken"] == "3.00"


def test_costs_and_memory(tmp_path: Path) -> None:
    runs = [sample_result("ramen", seed=seed) for seed in range(2)]
    runs[1]["cost"]["memory_bytes"] = 7 * 2**20
    (row,) = report(tmp_path, runs).table("setting-1-cost")
    assert row["Kept"] == "7.0"
    assert row["Passes (F / B)"] == "2 / 1"
    assert row["Hardware"] == "x86_64"
    assert not any("device" in name for name in row)  # no run has one


def test_settings_do_not_mix(tmp_path: Path) -> None:
    other = sample_result("tent")
    other["experiment"]["data_options"] = {"severity": 3}
    results = [sample_result("tent"), other, sample_result("tent", protocol="single")]
    reader = report(tmp_path, [*results, sample_result("tent", data="cifar100c", model="ViT-B-16/openai")])
    for number in range(1, 5):
        names = [row["Method"] for row in reader.table(f"setting-{number}-accuracy")]
        assert names == ["Zero-shot", "Tent"]
    assert "CIFAR-10-C, mixed, ViT-B-32/openai (severity 3, templates ensemble)" in reader.words


def test_reported_numbers_are_shown_for_the_papers_experiment(tmp_path: Path) -> None:
    printed = paper.reported("cifar10c", "ViT-B-32/openai", "mixed", "tent")["average"]
    runs = [whole_stream("tent", printed.mean + 0.05), whole_stream("sar", 75.0)]
    reader = report(tmp_path, [*runs, whole_stream("ramen", 70.0, topk=3)])
    zero_shot, tent, sar, ramen = reader.table("setting-1-accuracy")
    assert tent["Paper"] == f"{printed.mean:.1f} ± {printed.deviation:.1f}"
    assert tent["Difference"] == "+0.05"
    assert ramen["Paper"] == "\N{EN DASH}"
    marked = [
        attributes for tag, attributes in reader.elements if tag == "td" and attributes.get("class") == "bad"
    ]
    assert len(marked) == 2  # SAR's and zero-shot's, which the paper calls Ensemble
    assert (
        zero_shot["Paper"]
        == f"{paper.reported('cifar10c', 'ViT-B-32/openai', 'mixed', 'ensemble')['average'].mean:.1f}"
    )
    assert (sar["Paper"], sar["Difference"]) == ("69.1 ± 0.2", "+5.90*")


def test_a_planned_sweep_is_a_curve_and_leaves_the_table(tmp_path: Path) -> None:
    """The record that a command writes beside its results says what belongs together."""
    base = sample_result("ramen", average=60.0)
    points = [
        sample_result("ramen", average=float(50 + k), parameters={"lr": 0.01, "topk": k}) for k in (2, 10, 9)
    ]
    runs = [*points, base, sample_result("clip", average=50.0)]
    names = [f"{number:03}.json" for number in range(len(runs))]
    plan = {"kind": "plan", "view": "sweep", "parameter": "topk", "method": "ramen"}
    plan |= {"points": names[:4], "base": names[3:4], "references": names[4:]}
    reader = report(tmp_path, [*runs, plan])
    assert [row["Method"] for row in reader.table("setting-1-accuracy")] == ["Zero-shot", "CLIP", "Ramen"]
    assert [row["topk"] for row in reader.table("sweep-1")] == ["2", "9", "10", "auto", "CLIP"]
    alts = [attributes["alt"] for tag, attributes in reader.elements if tag == "img"]
    assert "Accuracy of Ramen by topk, CIFAR-10-C, mixed, ViT-B-32/openai" in alts
    ids = {attributes.get("id") for _, attributes in reader.elements}
    assert {f"settings-{number}" for number in range(1, 6)} <= ids


def test_a_plan_whose_runs_are_gone_shows_rows(tmp_path: Path) -> None:
    plan = {"kind": "plan", "view": "sweep", "parameter": "topk", "method": "ramen"}
    lost = {**plan, "points": ["gone.json", "000.json"], "base": [], "references": []}
    reader = report(tmp_path, [sample_result("ramen"), sample_result("tent"), lost, {**plan, "points": 7}])
    assert len(reader.table("setting-1-accuracy")) == 3
    assert "sweep-1" not in reader.tables


def test_two_values_are_two_rows(tmp_path: Path) -> None:
    other = sample_result("ramen", parameters={"lr": 0.01, "topk": 9})
    reader = report(tmp_path, [sample_result("ramen"), other])
    names = [row["Method"] for row in reader.table("setting-1-accuracy")]
    assert len(set(names)) == 3
    assert "sweep-1" not in reader.tables


def test_how_sure_a_run_was_and_a_dash_for_runs_that_did_not_say(tmp_path: Path) -> None:
    bins = [{"images": 40, "confidence": 10.0 * n, "accuracy": 9.0 * n} for n in range(1, 11)]
    new = sample_result("tent")
    new["scores"] |= {"ece_mass": 4.25, "nll": 1.5, "brier": 0.375, "aurc": 20.0, "reliability": bins}
    reader = report(tmp_path, [new, sample_result("ramen")])
    tent, ramen = reader.table("setting-1-changes")
    heads = ("Calibration error by mass, %", "NLL", "Brier", "AURC, %")
    assert [tent[head] for head in heads] == ["4.25", "1.50", "0.38", "20.00"]
    assert [ramen[head] for head in heads] == ["\N{EN DASH}"] * 4
    alts = [str(attributes["alt"]) for tag, attributes in reader.elements if tag == "img"]
    assert any(alt.startswith("Accuracy by confidence of Tent, CIFAR-10-C") for alt in alts)
