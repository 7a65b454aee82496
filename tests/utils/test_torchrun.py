"""Commands under torchrun; the group itself is tested with runs."""

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.utils.commands import refuse_torchrun
from tests.helpers.torchrun_processes import TorchrunProcesses


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["serve", "--no-auth", "--port", "0"], "ramen serve"),
        (["classify", "photos", "--classes", "cat,dog", "--out", "labels.csv"], "ramen classify"),
        (["compare", "--run", "--method", "clip", "--store", "results"], "a command with many runs"),
        (["sweep", "--vary", "topk=1,2"], "a command with many runs"),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_a_command_that_does_not_share_its_work_refuses(
    arguments: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert f"{name} does not share its work" in said
    monkeypatch.setenv("RANK", "1")
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.output) == (2, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--method", "watt"], "method 'watt' cannot share a stream"),
        (["--method", "ramen", "--set", "topk=0"], "topk"),
        (["--method", "ramen", "--window", "9"], "window"),
    ],
    ids=["method", "parameter", "window"],
)
def test_a_mistake_is_reported_once(arguments: list[str], reason: str, tmp_path: Path) -> None:
    given = [*arguments, "--model", "tiny", "--limit", "4", "--batch", "2", "--out", tmp_path / "results"]
    with TorchrunProcesses(2, given, tmp_path, command="run") as processes:
        codes = processes.wait()
        said = " ".join(processes.first.stderr.replace("│", " ").split())
        assert codes[0] == 2, said
        assert reason in said
        other = processes.processes[1]
        assert (other.stdout, other.stderr) == ("", "")


def test_processes_that_do_not_find_each_other(tmp_path: Path) -> None:
    given = ["--model", "tiny", "--limit", "4", "--out", tmp_path / "results"]
    begin = time.monotonic()
    with TorchrunProcesses(2, given, tmp_path, command="run", timeout=3, missing=[1]) as processes:
        assert processes.wait() == [1]
        said = " ".join(processes.first.stderr.split())
        assert "the processes of the group did not find each other within 3 s" in said
        assert "RAMEN_GROUP_TIMEOUT" in said
    assert time.monotonic() - begin < 60


def test_a_single_process_is_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuse_torchrun("it", "")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")
    refuse_torchrun("it", "")
