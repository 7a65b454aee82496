"""Errors of the operating system are not the user's mistakes: exit code 1 and one line, no traceback."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.experiments import demo
from tests.experiments.pages import write
from tests.fakes.results import sample_result

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write(tmp_path / "results", [sample_result()])
    return tmp_path / "results"


def ramen(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.stderr.strip()


@pytest.mark.parametrize("command", [["report"], ["compare"]])
def test_a_file_in_place_of_a_folder(results: Path, tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    for out in (file / "x.md", file / "deeper" / "x.md"):
        code, said = ramen(*command, results, "--out", out)
        assert code == 1
        assert said.startswith(f"error: {file}")
        assert len(said.splitlines()) == 1
    assert file.read_text() == "old"


def test_a_folder_in_place_of_a_file(results: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    code, said = ramen("report", results, "--out", tmp_path / "page.html")
    assert (code, said) == (1, f"error: {tmp_path / 'page.html'}: Is a directory")
    assert not list((tmp_path / "page.html").iterdir())


@pytest.mark.parametrize(("command", "name"), [("report", "page.html"), ("compare", "page.md")])
def test_a_full_disk_leaves_the_old_page(results: Path, tmp_path: Path, command: str, name: str) -> None:
    """A real failure in the middle of a write: this process may write no more than 100 bytes to a file."""
    out = tmp_path / name
    out.write_text("a good page")
    done = subprocess.run(
        [sys.executable, "-m", "ramen", command, str(results), "--out", str(out)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        env={**os.environ, "MPLCONFIGDIR": str(tmp_path / "matplotlib"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == f"error: {out}: File too large"
    assert "Traceback" not in done.stderr
    assert out.read_text() == "a good page"
    assert not list(tmp_path.glob(".*"))


def test_no_permission(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_open = Path.open

    def refuse(self: Path, mode: str = "r", *given: object, **named: object) -> object:
        if "x" in mode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return plain_open(self, mode, *given, **named)

    monkeypatch.setattr(Path, "open", refuse)  # root, who may run the tests, is refused nothing
    code, said = ramen("compare", results, "--out", tmp_path / "table.md")
    assert (code, said) == (1, f"error: {tmp_path / 'table.md'}: Permission denied")


def test_the_demos_results_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> None:
        raise FULL

    out = tmp_path / "demo"
    monkeypatch.setattr(demo, "METHODS", ())
    monkeypatch.setattr(demo, "PER_DOMAIN_QUICK", 1)
    monkeypatch.setattr(os, "fsync", fail)
    code, said = ramen("demo", "--quick", "--out", out, "--method", "clip")
    assert code == 1
    assert said.splitlines()[-1].startswith(f"error: {out / 'tiny' / 'mixed' / 'ensemble-seed0-'}")
    assert said.splitlines()[-1].endswith(".npz: No space left on device")
    assert not [path for path in out.rglob("*") if path.is_file()]


def test_the_demos_figure_is_whole_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figure.png"
    path.write_bytes(b"old")
    scores = {"average": 50.0, "domains": {"fog": 50.0}}
    record = {"experiment": {"method": "ensemble"}, "scores": scores, "composition": None}

    def fail(file: int) -> None:
        raise FULL

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"figure\.png"):
        demo.draw(path, [record], demo.drawings(["cat"], 1, 0), {})
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--data", "nothing"],
        ["compare", "nowhere"],
        ["report", "nowhere"],
        ["data", "make", "cifar10c", "--from", "nowhere", "--out", "out"],
        ["demo", "--classes", "nothing"],
    ],
)
def test_mistakes_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = ramen(*arguments)
    assert code == 2
    assert "Usage:" in said


def test_data_cannot_be_made_in_a_file(tmp_path: Path) -> None:
    images = tmp_path / "images.npz"
    np.savez(images, images=np.zeros((1, 32, 32, 3), np.uint8), labels=np.zeros(1, np.int64))
    code, said = ramen("data", "make", "cifar10c", "--from", images, "--out", images / "x", "--workers", 1)
    assert code == 1
    assert said.splitlines()[-1].startswith(f"error: {images}")


def test_results_cannot_be_stored_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, said = ramen("run", "--out", tmp_path / "file", "--limit", 1, "--method", "clip")
    assert code == 1
    assert said.splitlines()[-1].startswith(f"error: {tmp_path / 'file'}")


def test_a_broken_pipe_is_no_error(results: Path) -> None:
    """``ramen compare results | head -1``."""
    command = f"{sys.executable} -m ramen compare {results} --format csv | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "error" not in done.stderr
    assert "Traceback" not in done.stderr
