import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from ramen.serve.outputs.output import check_output, open_output
from ramen.serve.outputs.record import OtherOutputError, record_path
from ramen.utils.file_locks import LockedError
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
        [path.name, record_path(path).name]
    )


def test_what_was_appended_stays_when_a_run_fails(path):
    def interrupted_run():
        with open_output(path, IDENTITY) as output:
            output.start()
            output.append(FIRST)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_run()
    assert path.exists()
    assert len(keys(path)) == 3


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


def test_an_output_of_something_else_is_left_alone(path):
    with open_output(path, IDENTITY) as output:
        output.start()
        output.append(FIRST)
    before = path.read_bytes()
    with (
        pytest.raises(OtherOutputError, match="another method"),
        open_output(path, replace(IDENTITY, method="tent")),
    ):
        pass
    assert path.read_bytes() == before
    path.unlink()
    with open_output(path, replace(IDENTITY, method="tent")) as output:
        assert output.tally.files == 0


KILLED = """
import os, sys
from pathlib import Path
from ramen.serve.outputs.output import open_output
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


def test_after_a_run_that_ended_there_is_nothing_to_recover(path):
    with open_output(path, IDENTITY, state="state") as output:
        output.start()
        output.finish()
    with open_output(path, IDENTITY, state="state") as output:
        assert not output.recovering


def test_two_runs_cannot_write_one_output(path):
    with (
        open_output(path, IDENTITY),
        pytest.raises(LockedError, match="is writing this file"),
        open_output(path, IDENTITY),
    ):
        pass


def test_the_record_says_what_and_when(path):
    with open_output(path, IDENTITY) as output:
        output.start()
        output.append(FIRST)
        output.finish()
    record = json.loads(record_path(path).read_text())
    assert record["identity"]["classes"] == ["cat", "dog", "fire truck"]
    assert record["runs"][0]["files"] == 3
    assert record["runs"][0]["seconds"] >= 0


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
