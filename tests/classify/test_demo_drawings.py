import io
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ramen.classify import demo as demo_module
from ramen.classify.demo import classify_drawings, write_drawings
from ramen.classify.output import results_of
from ramen.cli import app
from ramen.data.drawings.tiny import DOMAINS

CLASSES = ["cat", "giraffe", "top hat"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    console = Console(file=io.StringIO(), width=400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_module, "PER_DOMAIN_QUICK", 6)
        report = classify_drawings(out, console, classes=CLASSES, seed=3, quick=True)
    return out, report, console.file.getvalue()


def results(out):
    return list(results_of(out / "labels.csv"))


def test_what_it_writes_and_counts(demo):
    out, report, text = demo
    count = 6 * len(DOMAINS)
    assert report.exit_code == 0
    assert (report.summary["files"], report.summary["errors"]) == (count, 0)
    assert len(list((out / "drawings").glob("*.png"))) == count
    changed = [result for result in results(out) if result.changed]

    def is_true(result, label):
        return f"-{label.replace(' ', '-')}-" in result.key

    assert report.summary["became_right"] == sum(is_true(result, result.label) for result in changed)
    assert report.summary["became_wrong"] == sum(
        is_true(result, result.zero_shot_label) for result in changed
    )
    assert f"Adaptation changed {len(changed)} of {count} labels" in text
    assert "Ramen on 108 files" in (out / "changes.html").read_text()


def test_the_command_that_it_prints_is_the_one_that_it_ran(demo):
    """Run as it is printed, it finds everything done already."""
    out, _, text = demo
    (line,) = re.findall("^  ramen (.*)$", text, re.M)
    before = (out / "labels.csv").read_bytes()
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 0, result.output
    assert "108 results already; files that are left: 0" in result.stderr
    assert (out / "labels.csv").read_bytes() == before


def test_a_second_demo_replaces_the_first(demo, monkeypatch):
    out, _, _ = demo
    own = out / "drawings" / "mine.png"
    own.write_bytes(next((out / "drawings").glob("0*.png")).read_bytes())
    monkeypatch.setattr(demo_module, "PER_DOMAIN_QUICK", 1)
    report = classify_drawings(out, Console(quiet=True), classes=CLASSES, seed=4, quick=True)
    assert report.summary["files"] == len(DOMAINS) + 1
    assert report.summary["new_files"] == len(DOMAINS) + 1
    assert own.exists()
    own.unlink()


def test_only_what_can_be_drawn_is_drawn(tmp_path):
    truth = write_drawings(tmp_path, CLASSES, 2, 0)
    assert set(truth.values()) == {"cat", "top hat"}
    assert sorted(truth) == sorted(str(path) for path in tmp_path.iterdir())
    assert {path.name.split("-", 1)[1] for path in tmp_path.iterdir()} == {
        f"{name}-{domain.replace('_', '-').replace(' ', '-')}.png"
        for name in ("cat", "top-hat")
        for domain in DOMAINS
    }
