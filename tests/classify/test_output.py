import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from ramen.classify.output import (
    CsvRows,
    JsonRows,
    OtherOutputError,
    check_output,
    journal_path,
    open_output,
    results_of,
)
from ramen.utils.files import LockedError
from tests.fakes.served_results import IDENTITY, answer, failure

FIRST = [answer("a.png"), failure("b\udcff.png"), answer("c.png", "dog", "cat")]
SECOND = [answer("d.png")]
needs_pyarrow = pytest.mark.skipif(
    find_spec("pyarrow") is None, reason="need pyarrow: pip install 'ramen-tta[parquet]'"
)
NAMES = ["labels.csv", "new/folder/labels.jsonl", pytest.param("labels.parquet", marks=needs_pyarrow)]


@pytest.fixture(params=NAMES)
def path(request, tmp_path):
    return tmp_path / request.param


def keys(path):
    with open_output(path, IDENTITY) as output:
        return [result.key for result in output.results()]


def test_it_grows_from_run_to_run(path):
    with open_output(path, IDENTITY) as output:
        output.start()
        output.append(FIRST)
        output.finish()
    with open_output(path, IDENTITY) as output:
        assert output.keys == {"a.png", "b\udcff.png", "c.png"}
        assert (output.tally.files, output.tally.errors, output.tally.changed) == (3, 1, 1)
        assert output.new_files == 0
        output.start()
        output.append(SECOND)
        assert output.new_files == 1
        assert [run.files for run in output.runs] == [3, 1]
        output.finish()
    assert keys(path) == ["a.png", "b\udcff.png", "c.png", "d.png"]
    assert sorted(entry.name for entry in path.parent.iterdir()) == sorted(
        [path.name, journal_path(path).name]
    )


def test_failed_files_can_be_tried_again(path):
    with open_output(path, IDENTITY) as output:
        output.start()
        output.append(FIRST)
    with open_output(path, IDENTITY, retry_failed=True) as output:
        assert output.keys == {"a.png", "c.png"}
        output.append([answer("b\udcff.png")])
    with open_output(path, IDENTITY) as output:
        assert output.tally.errors == 0
        assert [result.key for result in output.results()] == ["a.png", "c.png", "b\udcff.png"]


KILLED = """
import os, sys
from pathlib import Path
from ramen.classify.output import open_output
from tests.fakes.served_results import IDENTITY, answer
with open_output(Path(sys.argv[1]), IDENTITY, state=sys.argv[2] or None) as output:
    output.start()
    output.append([answer("a.png"), answer("b.png")])
    os.kill(os.getpid(), 9)
"""


def killed_run(path, state=""):
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), state], check=False)
    assert done.returncode == -9


def test_a_killed_run_is_continued(path):
    """Rows are there, the lock is not; only with the same state may that have learned more than is there."""
    killed_run(path, "state")
    with open_output(path, IDENTITY, state="state") as output:
        assert output.keys == {"a.png", "b.png"}
        assert output.recovering
    killed_run(path, "state")
    with open_output(path, IDENTITY, state="other") as output:
        assert not output.recovering
    killed_run(path)
    with open_output(path, IDENTITY) as output:
        assert not output.recovering


def test_two_runs_cannot_write_one_output(path):
    with (
        open_output(path, IDENTITY),
        pytest.raises(LockedError, match="is writing this file"),
        open_output(path, IDENTITY),
    ):
        pass


def test_the_journal_says_what_and_when(path):
    with open_output(path, IDENTITY, state="state") as output:
        output.start()
        output.append(FIRST)
        output.finish()
    lines = [json.loads(line) for line in journal_path(path).read_text().splitlines()]
    assert lines[0]["identity"]["classes"] == ["cat", "dog", "fire truck"]
    assert lines[1]["state"] == "state"
    assert lines[1]["started"].endswith("+00:00")
    assert [line["key"] for line in lines[2:5]] == ["a.png", "b\udcff.png", "c.png"]
    assert (lines[5]["files"], lines[5]["seconds"] >= 0) == (3, True)


def test_names_that_cannot_be_an_output(tmp_path):
    with pytest.raises(
        ValueError, match=r"--out must end with one of .csv, .jsonl, .parquet, got labels.txt"
    ):
        check_output(Path("labels.txt"))
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(ValueError, match="--out must be a file"):
        check_output(tmp_path / "x.csv")


def test_an_output_that_was_refused_before_it_began_leaves_nothing(path):
    def refused():
        with open_output(path, IDENTITY):
            raise ValueError("a state of something else")

    with pytest.raises(ValueError, match="something else"):
        refused()
    assert list(path.parent.iterdir()) == []
    with open_output(path, IDENTITY) as output:
        output.start()
        output.append(FIRST)
    with pytest.raises(ValueError, match="something else"):
        refused()
    assert len(keys(path)) == 3


# -- identity -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"weights": "cd34"}, "weights"),
        ({"classes": ("cat", "cow")}, "classes"),
        ({"classes": tuple("abcdef")}, "classes"),
        ({"templates": ("{}",)}, "templates"),
        ({"method": "tent"}, "method"),
        ({"parameters": {}}, "parameters"),
        ({"orient": False}, "--no-orient"),
    ],
)
def test_results_of_something_else_are_refused(tmp_path, change, name):
    path = grown(tmp_path / "labels.csv")
    before = path.read_bytes()
    with pytest.raises(OtherOutputError, match=name), open_output(path, replace(IDENTITY, **change)):
        pass
    assert path.read_bytes() == before
    with open_output(path, replace(IDENTITY, model="a copy of tiny")) as output:
        assert output.tally.files == 3


def grown(path, results=FIRST, **options):
    with open_output(path, IDENTITY, **options) as output:
        output.start()
        output.append(results)
    return path


@pytest.mark.parametrize("content", [b"{\n", b"[]\n", b"1\n", b"{}\n", b"", b'{"identity": {}}\n'])
def test_a_damaged_journal_is_named(path, content):
    grown(path)
    journal = journal_path(path)
    whole = journal.read_bytes()
    damaged = [content, whole + content] if content else [content]
    for bytes_ in damaged:
        journal.write_bytes(bytes_)
        with pytest.raises(OtherOutputError, match="journal"), open_output(path, IDENTITY):
            pass
        assert journal.read_bytes() == bytes_
    journal.unlink()
    with pytest.raises(OtherOutputError, match="has no journal"), open_output(path, IDENTITY):
        pass


# -- the journal and its views --------------------------------------------------------------------------

FORMS = {"labels.csv": CsvRows(3), "labels.jsonl": JsonRows()}
RESULTS = [answer("a"), answer("b\nb", "dog", "cat"), failure("c"), answer("d", adapted=False), answer("e")]


@pytest.fixture(params=FORMS)
def text(request, tmp_path):
    """The path of an output that grows, and how its rows are written."""
    return tmp_path / request.param, FORMS[request.param]


def test_rows_are_on_disk_as_soon_as_they_are_appended(text):
    path, form = text
    with open_output(path, IDENTITY) as output:
        output.start()
        assert path.read_bytes() == form.header()
        output.append(RESULTS[:2])
        assert path.read_bytes() == form.header() + form.encode(RESULTS[0]) + form.encode(RESULTS[1])
        assert list(output.results()) == RESULTS[:2]


def test_files_cut_at_any_byte_are_continued(text):
    """Whatever a kill leaves: complete rows stay, the rest goes, and the files end as if nothing happened."""
    path, form = text
    grown(path, RESULTS)
    journal, whole = journal_path(path).read_bytes(), path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(journal) if byte == 10]
    for length in range(ends[0], len(journal) + 1, 23):
        done = max(0, sum(end <= length for end in ends) - 2)
        journal_path(path).write_bytes(journal[:length])
        rows = form.header() + b"".join(map(form.encode, RESULTS[:done]))
        path.write_bytes(rows[: length % (len(rows) + 1)])
        with open_output(path, IDENTITY) as output:
            assert output.keys == {result.key for result in RESULTS[:done]}
            assert path.read_bytes() == rows
            output.append(RESULTS[done:])
        assert path.read_bytes() == whole, length


@pytest.mark.parametrize(
    "change",
    [lambda rows: rows + b"mine\n", lambda rows: b"x" + rows[1:], lambda rows: b"\xef\xbb\xbf" + rows],
)
def test_an_output_that_somebody_has_changed_is_refused_and_left_alone(text, change):
    path, _ = text
    grown(path, RESULTS)
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes(), journal_path(path).read_bytes()
    with pytest.raises(OtherOutputError, match=f"remove .*{path.name}"), open_output(path, IDENTITY):
        pass
    assert before == (path.read_bytes(), journal_path(path).read_bytes())


def test_something_else_is_left_alone(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"name,price\nsoup,12\n")
    with pytest.raises(OtherOutputError, match="has no journal"), open_output(path, IDENTITY):
        pass
    assert path.read_bytes() == b"name,price\nsoup,12\n"


def test_the_tally(path):
    with open_output(path, IDENTITY) as output:
        output.start()
        output.append(RESULTS)
        tally = output.tally
    assert (tally.files, tally.errors, tally.changed, tally.fallbacks, tally.answers) == (5, 1, 1, 1, 4)
    assert tally.labels == {"cat": 3, "dog": 1}
    with open_output(path, IDENTITY) as output:
        assert output.tally == tally


@pytest.mark.parametrize("count", range(6))
def test_the_last_rows_can_be_removed(text, count):
    path, form = text
    with open_output(path, IDENTITY) as output:
        output.start()
        output.append(RESULTS)
        output.remove_last(count)
        left = RESULTS[: len(RESULTS) - count]
        assert path.read_bytes() == form.header() + b"".join(map(form.encode, left))
        assert output.keys == {result.key for result in left}
        output.append([answer("f")])
        assert list(output.results()) == [*left, answer("f")]


def test_durable_rows_are_on_the_disk_before_the_next_ones_are_written(tmp_path, monkeypatch):
    sizes, path = [], tmp_path / "labels.csv"
    sync = os.fsync

    def slow_sync(handle):
        time.sleep(0.02)
        sizes.append(os.fstat(handle).st_size)
        sync(handle)

    with open_output(path, IDENTITY, state="state") as output:
        monkeypatch.setattr(os, "fsync", slow_sync)
        output.start()
        ends = [journal_path(path).stat().st_size]
        for result in RESULTS:
            output.append([result])
            ends.append(journal_path(path).stat().st_size)
    assert sizes == ends


def test_a_disk_that_fails_is_reported(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(5, "Input/output error")

    def append():
        with open_output(tmp_path / "labels.csv", IDENTITY, state="state") as output:
            output.start()
            monkeypatch.setattr(os, "fsync", fail)
            output.append(RESULTS[1:2])

    with pytest.raises(OSError, match="Input/output error"):
        append()


def test_what_becomes_of_formulas_can_be_changed(tmp_path):
    path = grown(tmp_path / "labels.csv", [answer("=1+1.png")])
    assert "\n'=1+1.png," in path.read_text()
    with open_output(path, IDENTITY, formulas="keep") as output:
        output.append([answer("-2.png")])
    assert "\n=1+1.png," in path.read_text()
    assert "\n-2.png," in path.read_text()
    with open_output(path, IDENTITY, formulas="keep") as output:
        assert output.keys == {"=1+1.png", "-2.png"}


# -- outputs of version 0.2 -----------------------------------------------------------------------------

EARLIER = Path(__file__).parent / "version_0_2"


@pytest.fixture(params=["labels.csv", "labels.jsonl", pytest.param("labels.parquet", marks=needs_pyarrow)])
def earlier(request, tmp_path):
    """Two runs with a state: one that ended with two results, one that was killed after another one."""
    for path in EARLIER.glob(f"*{request.param}*"):
        shutil.copy(path, tmp_path / path.name)
    return tmp_path / request.param


def test_an_output_of_version_0_2_is_continued(earlier):
    with open_output(earlier, IDENTITY, state="state") as output:
        assert output.keys == {"=a,\n.png", "b\udcff.png", "c.png"}
        assert output.recovering
        assert [(run.files, run.seconds is None) for run in output.runs] == [(2, False), (1, True)]
        assert [result.key for result in output.results_of_last_run()] == ["c.png"]
        output.start()
        output.append(SECOND)
    found = list(results_of(earlier))
    assert found[2] == answer("c.png", "dog", "cat", support=None, adapted=False)
    assert [result.key for result in found] == ["=a,\n.png", "b\udcff.png", "c.png", "d.png"]
    assert {path.name for path in earlier.parent.iterdir()} == {earlier.name, journal_path(earlier).name}


def test_an_earlier_output_of_something_else_is_left_alone(earlier):
    before = {path.name: path.read_bytes() for path in earlier.parent.iterdir() if "parquet" not in path.name}
    with (
        pytest.raises(OtherOutputError, match="another method"),
        open_output(earlier, replace(IDENTITY, method="tent")),
    ):
        pass
    assert all((earlier.parent / name).exists() for name in before if "ramen.json" not in name)


def test_an_earlier_output_that_is_damaged_is_named(earlier):
    record = earlier.with_name(f".{earlier.name}.ramen.json")
    record.write_text("{")
    with pytest.raises(OtherOutputError, match=r"ramen.json is damaged"), open_output(earlier, IDENTITY):
        pass
    assert record.read_text() == "{"


def test_an_earlier_output_that_was_removed_starts_again(tmp_path):
    shutil.copy(EARLIER / ".labels.csv.ramen.json", tmp_path)
    with open_output(tmp_path / "labels.csv", replace(IDENTITY, method="tent")) as output:
        assert output.tally.files == 0
