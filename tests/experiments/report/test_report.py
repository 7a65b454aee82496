"""The page without a browser: its numbers, its HTML, what it does with bad input."""

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.experiments.analysis import paper
from ramen.experiments.plan.presets import find_preset
from ramen.experiments.plan.values import plain
from ramen.experiments.report.report import write_report
from ramen.experiments.run.results import write_result
from tests.fakes.results import sample_result

VOID = {"meta", "link", "img", "input", "br"}
HEADINGS = ("h1", "h2", "h3")


@pytest.fixture
def drawn() -> None:
    """Asked for by tests that look at figures."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is most of the time, and most tests here read tables."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("ramen.experiments.report.figures.page_svg", lambda figure: "<svg/>")


class Reader(HTMLParser):
    """Checks that elements nest, and keeps what they hold."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.words: list[str] = []
        self._table = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._table = str(dict(attrs)["id"])
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "script" not in self.open:
            self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[self._table][-1][-1] += data

    def table(self, anchor: str) -> list[dict[str, str]]:
        heads, *rows = self.tables[anchor]
        return [dict(zip(heads, row, strict=True)) for row in rows]


def read(page: str) -> Reader:
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def write(folder: Path, results: list[dict[str, Any]]) -> Path:
    for number, result in enumerate(results):
        write_result(folder / f"{number:03}.json", result)
    return folder


def report(folder: Path, results: list[dict[str, Any]], **options: str) -> Reader:
    write_report([write(folder / "results", results)], folder / "report.html", **options)
    return read((folder / "report.html").read_text(encoding="utf-8"))


def whole_stream(method: str, average: float, **changed: Any) -> dict[str, Any]:
    """As if the paper's stream had been run with its settings, but for those that are ``changed``."""
    setting, preset = paper.setting("cifar10c"), find_preset(None, "cifar10c", "ViT-B-32/openai")
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
    (row,) = report(tmp_path, runs).table("setting-1-accuracy")
    # by hand: mean 71 1/3, squares 16/9 + 1/9 + 25/9 = 42/9, over two: 7/3, its root 1.5275; margins 0, 1, 3
    assert row["Average"] == "61.33 ± 1.53"
    assert row["fog"] == "71.3 ± 1.5"
    assert row["Above zero-shot"] == "+6.33 ± 1.33"
    assert row["Seeds"] == "0 1 2"


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    run = sample_result("tent")
    run["scores"]["average"] = 61.25
    (row,) = report(tmp_path, [run]).table("setting-1-accuracy")
    assert row["Average"] == "61.25"


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
        assert len(reader.table(f"setting-{number}-accuracy")) == 1
    assert "CIFAR-10-C, mixed, ViT-B-32/openai (severity 3, templates ensemble)" in reader.words


def test_reported_numbers_are_shown_for_the_papers_experiment(tmp_path: Path) -> None:
    printed = paper.reported("cifar10c", "ViT-B-32/openai", "mixed", "tent").average
    runs = [whole_stream("tent", printed.mean + 0.05), whole_stream("sar", 75.0)]
    reader = report(tmp_path, [*runs, whole_stream("ramen", 70.0, topk=3)])
    tent, sar, ramen = reader.table("setting-1-accuracy")
    assert tent["Paper"] == f"{printed.mean:.1f} ± {printed.deviation:.1f}"
    assert tent["Difference"] == "+0.05"
    assert ramen["Paper"] == "\N{EN DASH}"
    marked = [
        attributes for tag, attributes in reader.elements if tag == "td" and attributes.get("class") == "bad"
    ]
    assert len(marked) == 1  # SAR's alone
    assert (sar["Paper"], sar["Difference"]) == ("69.1 ± 0.2", "+5.90*")


def test_a_sweep_is_a_curve_and_leaves_the_table(tmp_path: Path) -> None:
    base = sample_result("ramen", average=60.0)
    points = [
        sample_result("ramen", average=float(50 + k), parameters={"lr": 0.01, "topk": k}) for k in (2, 10, 9)
    ]
    reader = report(tmp_path, [*points, base, sample_result("clip", average=50.0)])
    assert [row["Method"] for row in reader.table("setting-1-accuracy")] == ["CLIP", "Ramen"]
    assert [row["topk"] for row in reader.table("sweep-1")] == ["2", "5", "9", "10", "CLIP"]
    alts = [attributes["alt"] for tag, attributes in reader.elements if tag == "img"]
    assert "Accuracy of Ramen by topk, CIFAR-10-C, mixed, ViT-B-32/openai" in alts


def test_two_values_are_two_rows(tmp_path: Path) -> None:
    other = sample_result("ramen", parameters={"lr": 0.01, "topk": 9})
    reader = report(tmp_path, [sample_result("ramen"), other])
    names = [row["Method"] for row in reader.table("setting-1-accuracy")]
    assert len(set(names)) == 2
    assert "sweep-1" not in reader.tables


def test_variants_stand_beside_their_method(tmp_path: Path) -> None:
    def variant(label: str | None, protocol: str, **parameters: bool) -> dict[str, Any]:
        return sample_result("ramen", label=label, protocol=protocol, parameters={"lr": 0.01, **parameters})

    results = [
        variant(label, protocol, **parameters)
        for protocol in ("mixed", "single")
        for label, parameters in (
            ("w/o PB", {"balance": False}),
            ("w/o PB & DC", {"balance": False, "consistency": False}),
            (None, {}),
        )
    ]
    reader = report(tmp_path, results)
    rows = reader.table("ablation-1")
    assert [row["Variant"] for row in rows[::2]] == ["w/o PB & DC", "w/o PB", "Ramen"]
    assert [row["Protocol"] for row in rows[:2]] == ["mixed", "single"]
    assert "Paper" not in rows[0]  # three domains of made-up data are not the paper's
    assert "pair-1" in reader.tables


def test_damaged_files_are_told(tmp_path: Path) -> None:
    folder = write(tmp_path, [sample_result()])
    (folder / "cut.json").write_text('{"schema": 1, "kind": ')
    write_result(folder / "what.json", {"kind": "song"})
    write_result(
        folder / "study.json",
        {"kind": "study", "study": "s", "tables": [{"columns": ["a"], "rows": [[1, 2]]}]},
    )
    found = write_report([folder], tmp_path / "report.html")
    text = " ".join(read((tmp_path / "report.html").read_text()).words)
    assert "cut.json is damaged" in text
    assert "a result of kind 'song'" in text
    assert "study 's' has a row that does not fit its 1 columns" in text
    assert len(found.warnings) == 1


def test_nothing_to_show_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no results in"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    answer = CliRunner().invoke(app, ["report", str(tmp_path / "nowhere"), "--out", str(tmp_path / "r.html")])
    assert answer.exit_code == 2
    assert "there is no file or folder" in " ".join(answer.output.replace("│", " ").split())


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


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    write(tmp_path / "results", [sample_result()])
    out = tmp_path / "new" / "page.html"
    answer = CliRunner().invoke(
        app, ["report", str(tmp_path / "results"), "--out", str(out), "--title", "My runs"]
    )
    assert answer.exit_code == 0, answer.output
    assert "1 run" in answer.output
    assert "My runs" in read(out.read_text()).words


def test_the_same_results_give_the_same_bytes_in_any_order(tmp_path: Path, drawn: None) -> None:
    results = [sample_result(method, seed=seed) for method in ("tent", "ramen") for seed in range(2)]
    report(tmp_path / "one", results)
    report(tmp_path / "two", results[::-1])
    assert (tmp_path / "one" / "report.html").read_bytes() == (tmp_path / "two" / "report.html").read_bytes()


def attacked(value: Any, text: str) -> Iterator[Any]:
    """``value`` with each of its texts replaced, one after the other."""
    if isinstance(value, dict):
        for key, inner in value.items():
            for changed in attacked(inner, text):
                yield {**value, key: changed}
    elif isinstance(value, str):
        yield text


def test_text_stays_text_wherever_it_comes_from(tmp_path: Path, drawn: None) -> None:
    """Each text of a result in turn, domain names and keys, titles: no element comes of it."""
    evil = "$\\nope{$</style></script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;"
    study = {
        "kind": "study",
        "study": evil,
        "title": evil,
        "tables": [{"title": evil, "columns": [evil, "b"], "rows": [[evil, evil]], "note": evil}],
        "provenance": {evil: evil},
    }
    plain = sample_result("ramen", domains=(evil, "fog"))
    plain["provenance"][evil] = {evil: [evil]}
    runs = [plain, study]
    for number, changed in enumerate(attacked({k: plain[k] for k in ("experiment", "provenance")}, evil)):
        runs.append({**plain, **changed, "experiment": {**changed["experiment"], "seed": number + 1}})
    reader = report(tmp_path, runs, title=evil)
    tags = [tag for tag, _ in reader.elements]
    assert tags.count("script") == 1
    assert all(
        str(a["src"]).startswith("data:image/svg+xml;base64,") for t, a in reader.elements if t == "img"
    )
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    assert "".join(reader.words).count(evil) > len(runs)


def test_nothing_has_to_be_fetched(tmp_path: Path, drawn: None) -> None:
    reader = report(tmp_path, [sample_result("ramen"), sample_result("tent")])
    for tag, attributes in reader.elements:
        for name in ("src", "href", "srcset", "data", "poster", "action"):
            value = str(attributes.get(name, "#"))
            assert value.startswith(("#", "data:")), (tag, value)
    page = (tmp_path / "report.html").read_text()
    outside_images = re.sub(r"base64,[^\"]*", "", page)
    assert not re.search(r"https?://|@import|url\(", outside_images)


def test_the_page_is_in_order(tmp_path: Path) -> None:
    """Ids are there once, links lead somewhere, headings go down step by step, figures have words."""
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


def test_every_setting_of_every_run_is_on_the_page(tmp_path: Path) -> None:
    runs = [sample_result("tent", seed=seed) for seed in range(2)]
    runs[1]["provenance"]["stream"]["order"] = "sha256:other"
    runs[1]["provenance"]["versions"]["torch"] = "9.9.9"
    reader = report(tmp_path, runs)
    text = " ".join(reader.words)
    for value in _leaves([run["provenance"] for run in runs]):
        assert str(value) in text
    rows = reader.table("settings-1-runs")
    assert [row["Versions: torch"] for row in rows] == ["2.8.0", "9.9.9"]
    assert [row["Stream: order"] for row in rows] == ["sha256:3", "sha256:other"]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    elif value is not None and not isinstance(value, bool):  # these are told in words
        yield value


def test_a_study_is_shown_with_its_numbers_as_numbers(tmp_path: Path) -> None:
    shares = {"all": {"shares": [20.0, 5.0]}, "class": None}
    study = {
        "kind": "study",
        "study": "similarity",
        "title": "Pairs by similarity",
        "tables": [
            {"title": "Shares", "columns": ["bin", "all, %"], "rows": [["first", "20.00 ± 0.10"], ["x", "-"]]}
        ],
        "data": {"readings": shares, "paper": [40.1, 4.5]},
        "provenance": {"weights": "sha256:9"},
    }
    reader = report(tmp_path, [study])
    cells = [attributes for tag, attributes in reader.elements if tag == "td"]
    assert (cells[0]["data-sort"], cells[0]["data-deviation"]) == ("20.0", "0.1")
    assert "data-sort" not in cells[1]
    assert any("all pairs, reported in the paper" in str(a["alt"]) for t, a in reader.elements if t == "img")
    assert "sha256:9" in reader.words


def test_samples_are_what_the_page_reads() -> None:
    """The schema that these tests rest on is plain JSON."""
    assert json.loads(json.dumps(sample_result())) == sample_result()
