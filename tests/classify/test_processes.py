"""``ramen classify`` as a process of its own: killed, stopped, following a folder."""

import csv
import json
import os
import random
import signal
from pathlib import Path

import pytest

from ramen.classify.output import journal_path, results_of
from tests.helpers.classify_process import ClassifyProcess
from tests.helpers.drawing_files import CLASSES, write_drawings
from tests.helpers.slow_tests import RUN_SLOW_TESTS

BATCH = 8
COMMON = ["--classes", ",".join(CLASSES), "--model", "tiny", "--batch", BATCH]
FOLLOW = ["photos", "--watch", "--interval", "0.1", "--out", "labels.csv", *COMMON]


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    return write_drawings(tmp_path_factory.mktemp("drawings"))


def classify(folder, *arguments, **changes):
    """Run a command to its end and return what it says."""
    dies_at = changes.get("dies_at")
    with ClassifyProcess([*arguments, *COMMON], folder, **changes) as process:
        assert process.wait() == (0 if dies_at is None else -signal.SIGKILL), process.stderr
        return process.stderr


def rows(path):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def files(path):
    return [row["file"] for row in rows(path)] if Path(path).exists() else []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, drawings):
    """The bytes of an output whose run nobody disturbed, and of its journal."""
    out = tmp_path_factory.mktemp("undisturbed") / "labels.csv"
    classify(out.parent, drawings[0].parent, "--out", out)
    return out.read_bytes(), journal_path(out).read_bytes()


def deaths(undisturbed):
    """Where to die: in a row of the third batch, of the journal and of the output; in full, at many more."""
    for place, content in enumerate(undisturbed):
        header, size = content.index(b"\n") + 1, len(content)
        ends = [number + 1 for number, byte in enumerate(content) if byte == 10]
        sizes = [*ends[1::5], *random.Random(0).sample(range(header + 1, size), 30)]
        yield from ((place, number) for number in (sizes if RUN_SLOW_TESTS else [size // 2]))


def file_of(out, place):
    return (journal_path(out) if place else out).name


def test_every_file_once_after_kills(tmp_path, drawings, undisturbed):
    for number, (place, size) in enumerate(deaths(undisturbed)):
        out = tmp_path / f"{number}.csv"
        name, given = file_of(out, place), [drawings[0].parent, "--out", out]
        classify(tmp_path, *given, dies_at=(name, size))
        left = out.read_bytes() if out.exists() else b""
        if size < len(undisturbed[place]) - 3000:  # a second time, further on
            classify(tmp_path, *given, dies_at=(name, size + 2500))
        classify(tmp_path, *given)
        assert files(out) == [str(path) for path in drawings] == [result.key for result in results_of(out)]
        assert out.read_bytes().startswith(left[: left.rfind(b"\n") + 1])


@pytest.mark.parametrize("state_seconds", [0, 0.5], ids=["rows last", "state last"])
def test_with_a_state_a_kill_changes_nothing(tmp_path, drawings, undisturbed, state_seconds):
    """The same bytes as without the kill: nothing is learned twice, and nothing is forgotten.

    Whichever of the two is behind, the rows of the output or the state, which is written in the background.
    """
    for number, (place, size) in enumerate(deaths(undisturbed)):
        out = tmp_path / f"{number}.csv"
        given = [drawings[0].parent, "--out", out, "--state", f"state-{number}"]
        classify(tmp_path, *given, dies_at=(file_of(out, place), size), state_seconds=state_seconds)
        written = len(list(results_of(out)))
        said = classify(tmp_path, *given)
        assert out.read_bytes() == undisturbed[0], (place, size)
        if state_seconds and written % BATCH:
            assert "had not learned from the last" in said


def test_a_stop_by_the_system_saves_what_is_done(tmp_path, drawings):
    """SIGTERM, as a job scheduler sends it, in the middle of a list."""
    out, listed = tmp_path / "labels.csv", "".join(f"{path}\n" for path in drawings)
    given = ["-", "--out", out, *COMMON]
    with ClassifyProcess(given, tmp_path, batch_seconds=1, stdin=listed) as process:
        process.wait_for(lambda: files(out))
        process.send(signal.SIGTERM)
        assert process.wait() == 143, process.stderr
        assert "stopped, the same command continues" in process.stderr
    done = files(out)
    assert 0 < len(done) < len(drawings)
    assert len(done) % BATCH == 0
    classify(tmp_path, *drawings, "--out", out)
    assert files(out) == [str(path) for path in drawings]


# -- following a folder ---------------------------------------------------------------------------------


def test_new_files_are_classified_until_it_is_stopped(tmp_path, drawings):
    """Files that were there, one that grows, one in a new folder, one moved in, one that is damaged."""
    photos, elsewhere, out = tmp_path / "photos", tmp_path / "elsewhere", tmp_path / "labels.csv"
    for folder in (photos, elsewhere):
        folder.mkdir()
    contents = [path.read_bytes() for path in drawings]
    for name, content, when in (("b.png", contents[0], 1000), ("a.png", contents[1], 2000)):
        (photos / name).write_bytes(content)
        os.utime(photos / name, (when, when))
    with ClassifyProcess([*FOLLOW, "--page", "changes.html", "--json"], tmp_path) as process:
        process.wait_for(
            lambda: files(out) == ["photos/b.png", "photos/a.png"]
        )  # in the order of their times
        with (photos / "growing.png").open("wb") as file:
            for part in (contents[2][:100], contents[2][100:]):
                file.write(part)
                file.flush()
        (photos / "new").mkdir()
        (photos / "new" / "c.png").write_bytes(contents[3])
        (elsewhere / "d.png").write_bytes(contents[4])
        (elsewhere / "d.png").rename(photos / "d.png")
        (photos / "damaged.png").write_bytes(b"no image")
        process.wait_for(lambda: len(files(out)) == 6)
        process.send(signal.SIGINT)
        assert process.wait() == 0, process.stderr
        assert json.loads(process.stdout)["stopped"] is True
    assert [row["file"] for row in rows(out) if row["error"]] == ["photos/damaged.png"]
    assert "Ramen on 6 files" in (tmp_path / "changes.html").read_text()
    assert not (tmp_path / ".labels.csv.lock").exists()


def test_it_resumes_following(tmp_path, drawings):
    """What arrived while nobody was looking is classified then; what was done is not done again."""
    photos, out = tmp_path / "photos", tmp_path / "labels.csv"
    photos.mkdir()
    for number in range(2):
        (photos / f"{number}.png").write_bytes(drawings[number].read_bytes())
        with ClassifyProcess(FOLLOW, tmp_path) as process:
            process.wait_for(lambda: len(files(out)) > number)  # noqa: B023
            process.send(signal.SIGTERM)
            assert process.wait() == 0, process.stderr
    assert files(out) == ["photos/0.png", "photos/1.png"]
