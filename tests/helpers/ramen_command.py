"""The command line in this process."""

from click.testing import Result
from typer.testing import CliRunner

from ramen.cli import app


def ramen(*words: object, code: int = 0, columns: int = 140) -> Result:
    """What a command says, if it ends with that exit code."""
    found = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": str(columns), "TERM": "dumb"})
    assert found.exit_code == code, found.output + found.stderr
    return found
