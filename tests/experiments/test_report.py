"""The page without a browser: its HTML, its numbers, its settings, bad input."""

import base64
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.experiments.render import WORDS, Column, Table
from ramen.experiments.report import write_report
from ramen.experiments.store import write_result
from ramen.utils import pages
from tests.experiments.pages import Reader, read, report, write
from tests.fakes.published_results import published_result
from tests.fakes.results import sample_result

HEADINGS = ("h1", "h2", "h3")
DASH = "\N{EN DASH}"
SWEEP = {"kind": "plan", "view": "sweep", "parameter": "topk", "method": "ramen"}


def figure(page: Reader, start: str) -> str:
    """The SVG of the figure whose words for blind readers start so."""
    images = [one for tag, one in page.elements if tag == "img"]
    (source,) = [str(one["src"]) for one in images if str(one["alt"]).startswith(start)]
    return base64.b64decode(source.partition("base64,")[2]).decode()


def methods(page: Reader, setting: int = 1) -> list[str]:
    return [row["Method"] for row in page.table(f"setting-{setting}-accuracy")]


# -- files --------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_says_what_is_damaged(tmp_path: Path) -> None:
    folder = write(tmp_path, [sample_result()])
    (folder / "cut.json").write_text('{"schema": 1, "kind": ')
    write_result(folder / "what.json", {"kind": "song"})
    write_result(folder / "study.json", {"kind": "study", "study": "s", "tables": []})
    out = tmp_path / "new" / "page.html"
    answer = CliRunner().invoke(app, ["report", str(folder), "--out", str(out), "--title", "My runs"])
    assert answer.exit_code == 0, answer.output
    assert "1 run" in answer.output
    assert "cut.json is damaged" in answer.stderr
    text = " ".join(read(out.read_text()).words)
    for words in ("My runs", "cut.json is damaged", "a result of kind 'song'", "a result of the study 's'"):
        assert words in text


def test_a_full_disk_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report.html"
    folder = write(tmp_path / "results", [sample_result()])
    write_report([folder], out, title="Old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report([folder], out, title="New")
    assert "Old" in read(out.read_text()).words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results"]


def test_the_same_results_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    results = [sample_result(method, seed=seed) for method in ("tent", "ramen") for seed in range(2)]
    report(tmp_path / "one", results)
    report(tmp_path / "two", results[::-1])
    assert (tmp_path / "one" / "report.html").read_bytes() == (tmp_path / "two" / "report.html").read_bytes()


# -- HTML ---------------------------------------------------------------------------------------------------


def attacked(value: Any, text: str) -> Iterator[Any]:
    """``value`` with each of its texts replaced, one after the other."""
    if isinstance(value, dict):
        for key, inner in value.items():
            for changed in attacked(inner, text):
                yield {**value, key: changed}
    elif isinstance(value, str):
        yield text


def test_text_stays_text_wherever_it_comes_from(tmp_path: Path) -> None:
    """Each text of a result in turn, domain names and keys, titles: no element comes of it."""
    evil = "$\\nope{$</style></script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;"
    study = {"kind": "study", "study": evil}
    plan = {"kind": "plan", "parameter": evil, "method": evil, "points": [evil], "base": [], "references": []}
    whole = sample_result("ramen", domains=(evil, "fog"))
    whole["provenance"][evil] = {evil: [evil]}
    runs = [whole, study, plan]
    for number, changed in enumerate(attacked({k: whole[k] for k in ("experiment", "provenance")}, evil)):
        runs.append({**whole, **changed, "experiment": {**changed["experiment"], "seed": number + 1}})
    reader = report(tmp_path, runs, title=evil)
    assert [tag for tag, _ in reader.elements].count("script") == 1
    images = [str(attributes["src"]) for tag, attributes in reader.elements if tag == "img"]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in images)
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    assert "".join(reader.words).count(evil) > len(runs)


def test_the_page_is_in_order(tmp_path: Path) -> None:
    """Nothing is fetched, ids are there once, links lead somewhere, headings go down step by step."""
    results = [sample_result(method, seed=seed) for method in ("clip", "ramen") for seed in range(2)]
    reader = report(tmp_path, results)
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    targets = [str(a["href"])[1:] for t, a in reader.elements if t == "a"]
    targets += [str(a[name]) for _, a in reader.elements for name in ("aria-labelledby", "for") if name in a]
    assert set(targets) <= set(ids)
    levels = [HEADINGS.index(tag) for tag, _ in reader.elements if tag in HEADINGS]
    assert levels[0] == 0
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(attributes.get("alt") for tag, attributes in reader.elements if tag == "img")
    for tag, attributes in reader.elements:
        for name in ("src", "href", "srcset", "data", "poster", "action"):
            assert str(attributes.get(name, "#")).startswith(("#", "data:")), tag
    outside_images = re.sub(r"base64,[^\"]*", "", (tmp_path / "report.html").read_text())
    assert not re.search(r"https?://|@import|url\(", outside_images)


def test_every_setting_of_every_run_is_on_the_page(tmp_path: Path) -> None:
    runs = [sample_result("tent", seed=seed) for seed in range(2)]
    runs[1]["provenance"]["stream"]["order"] = "sha256:other"
    runs[1]["provenance"]["versions"]["torch"] = "9.9.9"
    reader = report(tmp_path, runs)
    text = " ".join(reader.words)
    for value in leaves([run["provenance"] for run in runs]):
        assert str(value) in text
    rows = reader.table("settings-1-runs")
    assert [row["Versions: torch"] for row in rows] == ["2.8.0", "9.9.9"]
    assert [row["Stream: order"] for row in rows] == ["sha256:3", "sha256:other"]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)
    elif value is not None and not isinstance(value, bool):  # these are shown in words
        yield value


def test_what_a_cell_of_the_page_holds() -> None:
    """Text that people read, and exact numbers to sort and copy by."""
    columns = (
        Column("Method", ["Tent", "<i>"], WORDS, links=[[("Tent", "settings-1")], []]),
        Column(
            "Avg.",
            [-9.5, None],
            spread=[0.2, float("nan")],
            what="margin",
            marked=[True, False],
            hint="a mean",
            hints=[None, "not run"],
        ),
        Column("Seeds", ["0 1", ""], WORDS, texts=["2", ""], links=[[("0", "r0"), ("1", "r1")], []]),
    )
    table = Table(
        "A & b", columns, ("Below 5 %.",), aside=[False, True], methods=["Tent", ""], ids=["row-1", "r"]
    )
    part = {"table": table, "id": "t", "title": table.title}
    sections = [{"id": "s", "title": "S", "parts": [part]}]
    page = pages.render("experiments/page.html.j2", title="T", counts={}, commits=[], sections=sections)
    for piece in (
        '<table id="t" aria-labelledby="t-title">',
        '<h3 id="t-title">A &amp; b</h3>',
        '<button type="button" title="a mean">Avg.</button>',
        'data-kind="number" data-spread="margin"',
        '<tr data-place="0" data-method="Tent" id="row-1">',
        '<a href="#settings-1">Tent</a></th>',
        '<td data-kind="number" data-sort="-9.5" data-deviation="0.2" class="bad">'
        '\u22129.50<span class="spread"> \u00b1 0.20</span>*</td>',
        'data-sort="0 1"><span class="seeds"><a href="#r0">0</a> <a href="#r1">1</a></span></td>',
        'data-sort="&lt;i&gt;" class="soft">&lt;i&gt;</th>',
        '<td data-kind="number" title="not run" class="soft">\u2013</td>',
        '<p class="note">Below 5 %.</p>',
    ):
        assert piece in page


# -- numbers ------------------------------------------------------------------------------------------------


def test_means_and_deviations_are_those_of_the_seeds(tmp_path: Path) -> None:
    runs = [sample_result("tent", seed=seed) for seed in range(3)]
    for run, fog in zip(runs, (70.0, 71.0, 73.0), strict=True):
        run["scores"]["domains"]["fog"] = fog
        run["scores"]["average"] = fog - 10
        run["scores"]["difference"] = {"points": fog - 65, "margin": fog - 70}
    alone = sample_result("sar")
    alone["scores"]["average"] = 61.25
    _, tent, sar = report(tmp_path, [*runs, alone]).table("setting-1-accuracy")
    # by hand: mean 71 1/3, squares 16/9 + 1/9 + 25/9 = 42/9, over two: 7/3, its root 1.5275; margins 0, 1, 3
    assert tent["Average"] == "61.33 ± 1.53"
    assert tent["fog"] == "71.3 ± 1.5"
    assert tent["Above zero-shot"] == "+6.33 ± 1.33"
    assert tent["Seeds"] == "0 1 2"
    assert sar["Average"] == "61.25"


def test_zero_shot_has_a_row_although_nobody_ran_it(tmp_path: Path) -> None:
    """From the run with the most seeds: each records what the classifier does alone on its stream."""
    runs = [sample_result("tent", seed=seed) for seed in range(2)]
    for run, fog in zip(runs, (40.0, 42.0), strict=True):
        run["scores"]["zero_shot"]["domains"]["fog"] = fog
        run["scores"]["zero_shot"]["average"] = fog + 10
    reader = report(tmp_path / "one", [*runs, sample_result("sar")])
    assert methods(reader) == ["Zero-shot", "Tent", "SAR"]
    zero_shot = reader.table("setting-1-accuracy")[0]
    shown = [zero_shot[head] for head in ("Average", "fog", "Above zero-shot", "Seeds")]
    assert shown == ["51.00 ± 1.41", "41.0 ± 1.4", "+0.00 ± 0.00", "0 1"]
    assert any(words.endswith("as recorded with the runs of Tent.") for words in reader.words)
    ran = report(tmp_path / "two", [sample_result("ensemble", average=55.0), sample_result("tent")])
    assert methods(ran) == ["Ensemble", "Tent"]


def test_reading_is_not_charged_to_a_method(tmp_path: Path) -> None:
    """Whoever runs first reads from the disk: it says nothing about the method."""
    runs = [sample_result("tent"), sample_result("ramen")]
    runs[0]["cost"]["seconds"]["read"] = 36.0
    runs[1]["cost"]["seconds"]["read"] = 0.6
    reader = report(tmp_path, runs)
    drawn = re.findall(r">([^<>]+)</text>", figure(reader, "Milliseconds per image by stage"))
    # 7.4 s of 600 images: preprocess 1.1, predict 6.0, zero-shot 0.2, score 0.1
    assert drawn.count("12.3") == 2
    assert "read" not in drawn
    assert any("it took 1 to 60 ms per image" in words for words in reader.words)


def test_settings_do_not_mix(tmp_path: Path) -> None:
    other = sample_result("tent")
    other["experiment"]["data_options"] = {"severity": 3}
    results = [sample_result("tent"), other, sample_result("tent", protocol="single")]
    reader = report(tmp_path, [*results, sample_result("tent", data="cifar100c", model="ViT-B-16/openai")])
    assert [methods(reader, number) for number in range(1, 5)] == [["Zero-shot", "Tent"]] * 4
    assert "CIFAR-10-C, mixed, ViT-B-32/openai (severity 3, templates ensemble)" in reader.words


def test_reported_numbers_are_shown_for_the_papers_experiment(tmp_path: Path) -> None:
    runs = [published_result("tent", average=66.95), published_result("sar", average=75.0)]
    reader = report(tmp_path, [*runs, published_result("ramen", average=70.0, overrides={"topk": 3})])
    rows = reader.table("setting-1-accuracy")
    shown = [(row["Method"], row["Paper"], row["Difference"]) for row in rows]
    assert shown == [
        ("Zero-shot", "61.3", "\u22126.30*"),  # which the paper calls Ensemble
        ("Tent", "66.9 ± 0.2", "+0.05"),
        ("SAR", "69.1 ± 0.2", "+5.90*"),
        ("Ramen", DASH, DASH),
    ]


def test_a_planned_sweep_is_a_curve_and_leaves_the_table(tmp_path: Path) -> None:
    """The record that a command writes beside its results says what belongs together."""
    base = sample_result("ramen", average=60.0)
    points = [
        sample_result("ramen", average=float(50 + k), parameters={"lr": 0.01, "topk": k}) for k in (2, 10, 9)
    ]
    runs = [*points, base, sample_result("clip", average=50.0)]
    names = [f"{number:03}.json" for number in range(len(runs))]
    plan = {**SWEEP, "points": names[:4], "base": names[3:4], "references": names[4:]}
    reader = report(tmp_path, [*runs, plan])
    assert methods(reader) == ["Zero-shot", "CLIP", "Ramen"]
    assert [row["topk"] for row in reader.table("sweep-1")] == ["2", "9", "10", "auto", "CLIP"]
    assert "60.0" in figure(reader, "Accuracy of Ramen by topk, CIFAR-10-C, mixed, ViT-B-32/openai")
    ids = {attributes.get("id") for _, attributes in reader.elements}
    assert {f"settings-{number}" for number in range(1, 6)} <= ids


def test_a_plan_whose_runs_are_gone_shows_rows(tmp_path: Path) -> None:
    lost = {**SWEEP, "points": ["gone.json", "000.json"], "base": [], "references": []}
    other = sample_result("ramen", parameters={"lr": 0.01, "topk": 9})
    reader = report(tmp_path, [sample_result("ramen"), other, lost, {**SWEEP, "points": 7}])
    assert len(set(methods(reader))) == 3
    assert "sweep-1" not in reader.tables


def test_how_sure_a_run_was_and_a_dash_for_runs_that_did_not_say(tmp_path: Path) -> None:
    bins = [{"images": 40, "confidence": 10.0 * n, "accuracy": 9.0 * n} for n in range(1, 11)]
    new = sample_result("tent")
    new["scores"] |= {"ece_mass": 4.25, "nll": 1.5, "brier": 0.375, "aurc": 20.0, "reliability": bins}
    reader = report(tmp_path, [new, sample_result("ramen")])
    tent, ramen = reader.table("setting-1-changes")
    heads = ("Calibration error by mass, %", "NLL", "Brier", "AURC, %")
    assert [tent[head] for head in heads] == ["4.25", "1.50", "0.38", "20.00"]
    assert [ramen[head] for head in heads] == [DASH] * 4
    assert "Tent" in figure(reader, "Accuracy by confidence of Tent, CIFAR-10-C")
