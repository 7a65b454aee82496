"""Commands under torchrun; the group itself is tested with runs, and with ``ramen classify``."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.utils.torchrun import local_processes, refuse_torchrun


def test_a_command_that_does_not_share_its_work_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(app, ["serve", "--no-auth", "--port", "0"])
    assert result.exit_code == 2
    assert "ramen serve does not share its work" in result.output
    assert not list(tmp_path.iterdir())


def test_processes_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert local_processes() == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert local_processes() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "some")
    with pytest.raises(ValueError, match="LOCAL_WORLD_SIZE must be the number that torchrun sets"):
        local_processes()


def test_a_single_process_is_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuse_torchrun("it", "")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")
    refuse_torchrun("it", "")
