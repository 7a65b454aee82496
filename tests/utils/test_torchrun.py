"""Commands under torchrun; the group itself is tested with runs."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.utils.torchrun import refuse_torchrun


@pytest.mark.parametrize(
    "command",
    [
        ["classify", "photos", "--classes", "cat,dog", "--out", "labels.csv"],
        ["serve", "--no-auth", "--port", "0"],
    ],
    ids=lambda command: command[0],
)
def test_commands_that_do_not_share_their_work_refuse(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert f"ramen {command[0]} does not share its work" in result.output
    assert not list(tmp_path.iterdir())


def test_a_single_process_is_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuse_torchrun("it", "")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")
    refuse_torchrun("it", "")
