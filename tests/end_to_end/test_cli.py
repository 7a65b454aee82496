from typer.testing import CliRunner

import ramen
from ramen.cli import app

runner = CliRunner()


def test_describe_lists_all_methods() -> None:
    result = runner.invoke(app, ["describe"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == ramen.list_methods()


def test_describe_shows_a_methods_record() -> None:
    result = runner.invoke(app, ["describe", "ramen"])
    assert result.exit_code == 0
    assert "capacity='auto'" in result.output
    assert "2 forward, 1 backward" in result.output


def test_describe_names_the_nearest() -> None:
    result = runner.invoke(app, ["describe", "tnet"])
    assert result.exit_code == 2
    assert "did you mean 'tent'" in result.output
