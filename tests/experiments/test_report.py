"""The page as a whole, without a browser: its HTML, its settings, bad input."""

import json
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
from tests.experiments.pages import read, report, write
from tests.fakes.results import sample_result

HEADINGS = ("h1", "h2", "h3")


@pytest.fixture
def drawn() -> None:
    """Asked for by tests that look at figures."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is most of the time, and most tests here read tables."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("ramen.experiments.report.page_svg", lambda figure: "<svg/>")


def test_damaged_files_are_reported(tmp_path: Path) -> None:
    folder = write(tmp_path, [sample_result()])
    (folder / "cut.json").write_text('{"schema": 1, "kind": ')
    write_result(folder / "what.json", {"kind": "song"})
    write_result(folder / "study.json", {"kind": "study", "study": "s", "tables": []})
    found = write_report([folder], tmp_path / "report.html")
    text = " ".join(read((tmp_path / "report.html").read_text()).words)
    assert "cut.json is damaged" in text
    assert "a result of kind 'song'" in text
    assert "a result of the study 's'" in text
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
    study = {"kind": "study", "study": evil}
    plan = {"kind": "plan", "parameter": evil, "method": evil, "points": [evil], "base": [], "references": []}
    plain = sample_result("ramen", domains=(evil, "fog"))
    plain["provenance"][evil] = {evil: [evil]}
    runs = [plain, study, plan]
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
    elif value is not None and not isinstance(value, bool):  # these are shown in words
        yield value


def test_samples_are_what_the_page_reads() -> None:
    """The schema that these tests rest on is plain JSON."""
    assert json.loads(json.dumps(sample_result())) == sample_result()


def test_what_a_cell_of_the_page_holds() -> None:
    """Text that people read, and exact numbers to sort and copy by."""
    columns = (
        Column("Method", ["Tent", "<i>"], WORDS, links=[[("Tent", "settings-1")], []]),
        Column(
            "Avg.",
            [-9.5, None],
            spread=[0.2, None],
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
    page = pages.render(
        "experiments/page.html.j2",
        title="T",
        summary="",
        sections=[{"id": "s", "title": "S", "parts": [{"table": table, "id": "t", "title": table.title}]}],
    )
    assert '<table id="t" aria-labelledby="t-title">' in page
    assert '<h3 id="t-title">A &amp; b</h3>' in page
    assert '<button type="button" title="a mean">Avg.</button>' in page
    assert 'data-kind="number" data-spread="margin"' in page
    assert '<tr data-place="0" data-method="Tent" id="row-1">' in page
    assert '<a href="#settings-1">Tent</a></th>' in page
    assert (
        '<td data-kind="number" data-sort="-9.5" data-deviation="0.2" class="bad">'
        '\u22129.50<span class="spread"> \u00b1 0.20</span>*</td>'
    ) in page
    assert 'data-sort="0 1"><span class="seeds"><a href="#r0">0</a> <a href="#r1">1</a></span></td>' in page
    assert 'data-sort="&lt;i&gt;" class="soft">&lt;i&gt;</th>' in page
    assert '<td data-kind="number" title="not run" class="soft">\u2013</td>' in page
    assert '<p class="note">Below 5 %.</p>' in page
