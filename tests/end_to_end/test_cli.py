import json

from typer.testing import CliRunner

import ramen
from ramen.cli import app

runner = CliRunner()


def test_describe_shows_a_methods_record() -> None:
    result = runner.invoke(app, ["describe", "ramen"])
    assert result.exit_code == 0
    assert "capacity='auto'" in result.output
    assert "2 forward, 1 backward" in result.output


def test_describe_names_the_nearest() -> None:
    result = runner.invoke(app, ["describe", "tnet"])
    assert result.exit_code == 2
    assert "did you mean 'tent'" in result.output


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"ramen {ramen.__version__}\n")


def test_methods_are_listed_with_title_and_venue() -> None:
    result = runner.invoke(app, ["methods"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == ramen.list_methods()
    assert "tent       Tent: fully test-time adaptation by entropy minimisation (ICLR 2021)" in lines


def test_methods_as_json() -> None:
    records = json.loads(runner.invoke(app, ["methods", "--json"]).stdout)
    assert [record["name"] for record in records] == ramen.list_methods()
    tent = next(record for record in records if record["name"] == "tent")
    assert tent["venue"] == "ICLR 2021"
    assert (tent["defaults"]["lr"], tent["defaults"]["statistics"]) == (2e-5, "source")
