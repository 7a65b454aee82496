"""``ramen classify`` in the processes of torchrun: the output of one process, written by the first."""

import csv
import json
import signal
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ramen.methods import _saved_folder
from ramen.serve.outputs.record import record_path
from tests.helpers.classify_process import ClassifyProcess
from tests.helpers.drawing_files import CLASSES, write_drawings
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.helpers.torchrun_processes import TorchrunProcesses

BATCH = 8
COMMON = ["--classes", ",".join(CLASSES), "--model", "tiny", "--batch", BATCH]
EXACT = ("file", "label", "zero_shot_label", "changed", "adapted", "error", "support", "state_version")


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 36 drawings and two files that are none."""
    folder = tmp_path_factory.mktemp("drawings") / "photos"
    write_drawings(folder)
    (folder / "003x.png").write_bytes(b"no image")
    (folder / "020x.png").write_bytes(b"")
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def alone(folder: Path, *arguments: object, code: int = 3) -> ClassifyProcess:
    with ClassifyProcess([*arguments, *COMMON], folder) as process:
        assert process.wait() == code, process.stderr
        return process


def together(count: int, folder: Path, *arguments: object, code: int = 3, **others: Any) -> TorchrunProcesses:
    """Run a command to its end: the first process has its exit code, the others end well and say nothing."""
    with TorchrunProcesses(count, [*arguments, *COMMON], folder, **others) as processes:
        codes = processes.wait()
        assert codes == [code] + [0] * (count - 1), [one.stderr for one in processes.processes]
        assert [(one.stdout, one.stderr) for one in processes.processes[1:]] == [("", "")] * (count - 1)
        return processes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, drawings: Path) -> list[dict[str, str]]:
    """The rows of one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    alone(folder, drawings, "--out", "labels.csv")
    return rows(folder / "labels.csv")


def assert_same(found: list[dict[str, str]], expected: list[dict[str, str]]) -> None:
    """The same rows in the same order, up to the rounding of passes with batches of another size."""
    assert [[row[name] for name in EXACT] for row in found] == [
        [row[name] for name in EXACT] for row in expected
    ]
    for name in ("probability", "zero_shot_probability", "probability_2"):
        assert [float(row[name] or -1) for row in found] == pytest.approx(
            [float(row[name] or -1) for row in expected], rel=1e-4, abs=1e-6
        )


@pytest.mark.parametrize("count", [1, 2, 3, 4] if RUN_SLOW_TESTS else [3])
def test_one_output_page_and_summary(
    count: int, tmp_path: Path, drawings: Path, undisturbed: list[dict[str, str]]
) -> None:
    listed = "".join(f"{path}\n" for path in sorted(drawings.iterdir()))  # which one of them may read
    made = ["--page", "changes.html", "--sort-into", "sorted", "--json"]
    processes = together(count, tmp_path, "-", "--out", "labels.csv", *made, stdin=listed)
    assert_same(rows(tmp_path / "labels.csv"), undisturbed)
    summary = json.loads(processes.first.stdout)
    assert (summary["files"], summary["errors"], summary["processes"]) == (38, 2, count)
    assert "Ramen on 38 files" in (tmp_path / "changes.html").read_text()
    sorted_files = [path.name for path in (tmp_path / "sorted").glob("*/*")]
    assert sorted(sorted_files) == sorted(Path(row["file"]).name for row in undisturbed if not row["error"])
    record = json.loads(record_path(tmp_path / "labels.csv").read_text())
    assert record["runs"][0]["processes"] == count


@pytest.mark.parametrize(
    "name",
    [
        "labels.jsonl",
        pytest.param(
            "labels.parquet",
            marks=pytest.mark.skipif(find_spec("pyarrow") is None, reason="need pyarrow"),
        ),
    ],
)
def test_other_formats(name: str, tmp_path: Path, drawings: Path, undisturbed: list[dict[str, str]]) -> None:
    together(2, tmp_path, drawings, "--out", name)
    if name.endswith(".jsonl"):
        found = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
    else:
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(tmp_path / name).to_pylist()
    assert [(row["file"], row["label"] or "") for row in found] == [
        (row["file"], row["label"]) for row in undisturbed
    ]


# -- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["photos", "--watch"], "--watch: not under torchrun"),
        (["photos", "--server", "http://localhost:1"], "--server: not under torchrun"),
        (["photos", "--state", "s3://bucket/x"], "--state must be a folder under torchrun"),
        (["nowhere"], "there is no file or folder 'nowhere'"),
        (["photos", "--method", "watt"], "method 'watt' cannot share a stream"),
        (["photos", "--device", "tpu"], "tpu"),
    ],
    ids=lambda given: given[-1] if isinstance(given, list) else "",
)
def test_mistakes_are_reported_once(arguments: list[str], reason: str, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    given = [*arguments, "--out", "labels.csv"]
    if "--server" not in arguments:
        given += COMMON
    with TorchrunProcesses(2, given, tmp_path) as processes:
        codes = processes.wait()
        assert codes[0] == 2, processes.first.stderr
        said = " ".join(processes.first.stderr.replace("│", " ").split())
        assert reason in said
        if "--device" not in arguments:  # which decides how they find each other
            assert codes[1] == 0
            assert processes.processes[1].stderr == ""
    assert not (tmp_path / "labels.csv").exists()


def test_an_output_of_something_else_is_refused_by_the_first(tmp_path: Path, drawings: Path) -> None:
    (tmp_path / "labels.csv").write_text("mine\n")
    processes = together(2, tmp_path, drawings, "--out", "labels.csv", code=2)
    assert "has no record" in processes.first.stderr
    assert (tmp_path / "labels.csv").read_text() == "mine\n"


def test_a_process_that_dies_ends_the_others(tmp_path: Path, drawings: Path) -> None:
    out = tmp_path / "labels.csv"
    slow = {rank: {"batch_seconds": 0.5} for rank in range(3)}
    with TorchrunProcesses(3, [drawings, "--out", out, *COMMON], tmp_path, changes=slow) as processes:
        processes.first.wait_for(lambda: len(rows(out)) >= BATCH)
        processes.processes[1].send(signal.SIGKILL)
        codes = processes.wait()
        assert codes == [1, -signal.SIGKILL, 1]
        for rank in (0, 2):
            assert "a process of the group did not answer" in processes.processes[rank].stderr
    left = rows(out)
    assert 0 < len(left) < 38
    together(2, tmp_path, drawings, "--out", out)
    assert rows(out)[: len(left)] == left
    assert [row["file"] for row in rows(out)] == [str(path) for path in sorted(drawings.iterdir())]


# -- stopping and resuming ------------------------------------------------------------------------------


@pytest.mark.parametrize("reached", [[0, 1], [1]], ids=["all", "one of them"])
def test_a_stop_saves_what_is_done(
    reached: list[int], tmp_path: Path, drawings: Path, undisturbed: list[dict[str, str]]
) -> None:
    out = tmp_path / "labels.csv"
    given = [drawings, "--out", out, "--state", tmp_path / "state"]
    slow = {rank: {"batch_seconds": 0.5} for rank in range(2)}
    with TorchrunProcesses(2, [*given, *COMMON], tmp_path, changes=slow) as processes:
        processes.first.wait_for(lambda: len(rows(out)) >= BATCH)
        for rank in reached:
            processes.processes[rank].send(signal.SIGTERM)
        assert processes.wait() == [143, 0], processes.first.stderr
        assert "stopped, the same command continues" in processes.first.stderr
    assert 0 < len(rows(out)) < 38
    assert len(rows(out)) % BATCH == 0
    alone(tmp_path, *given)  # in one process
    assert_same(rows(out), undisturbed)


# What a killed run has left: how many snapshots it has written, after which part of its output it was killed,
# and how many processes continue.
KILLS = [(1, 0.7, 3), (0, 0.7, 1), (1, 0.1, 1)]
if RUN_SLOW_TESTS:
    KILLS = list(product((0, 1, 2), (0.1, 0.4, 0.7), (1, 3)))


@pytest.mark.parametrize(("snapshots", "part", "then"), KILLS)
def test_after_a_kill_nothing_is_learned_twice_or_forgotten(
    snapshots: int,
    part: float,
    then: int,
    tmp_path: Path,
    drawings: Path,
    undisturbed: list[dict[str, str]],
) -> None:
    """The labels of a run that nobody disturbed: whether the state or the rows are behind."""
    out, state = tmp_path / "labels.csv", tmp_path / "state"
    given = [drawings, "--out", out, "--state", state]
    size = sum(len(",".join(row.values())) + 1 for row in undisturbed)
    changes: dict[int, dict[str, Any]] = {rank: {"snapshots": snapshots} for rank in range(2)}
    changes[0]["dies_at"] = int(part * size)
    with TorchrunProcesses(2, [*given, *COMMON], tmp_path, changes=changes) as processes:
        assert processes.wait() == [-signal.SIGKILL, 1]
        assert "a process of the group did not answer" in processes.processes[1].stderr
    left = out.read_bytes().count(b"\n") - 1  # whole rows
    assert 0 < left < 38
    assert _saved_folder.holds_state(state / "group") == (snapshots > 0)
    said = (alone(tmp_path, *given) if then == 1 else together(then, tmp_path, *given).first).stderr
    ahead = left - snapshots * BATCH  # of the state, which is written after each of the first batches
    assert (f"had not learned from the last {ahead} results" in said) == (ahead > 0)
    assert_same(rows(out), undisturbed)


def test_the_state_of_one_process_continues_in_many(
    tmp_path: Path, drawings: Path, undisturbed: list[dict[str, str]]
) -> None:
    paths = sorted(drawings.iterdir())
    state = ["--state", tmp_path / "state", "--out", tmp_path / "labels.csv"]
    alone(tmp_path, *paths[: 2 * BATCH], *state)
    assert list((tmp_path / "state").glob("segment-*"))
    together(2, tmp_path, *paths[: 4 * BATCH], *state)
    assert not list((tmp_path / "state").glob("segment-*"))
    alone(tmp_path, *paths, *state)
    assert not (tmp_path / "state" / "group").exists()
    assert_same(rows(tmp_path / "labels.csv"), undisturbed)
