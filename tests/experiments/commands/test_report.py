"""``ramen report`` from the outside."""

from pathlib import Path

from typer.testing import CliRunner

from ramen.cli import app
from tests.experiments.pages import read, write
from tests.fakes.results import sample_result


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    write(tmp_path / "results", [sample_result()])
    out = tmp_path / "new" / "page.html"
    answer = CliRunner().invoke(
        app, ["report", str(tmp_path / "results"), "--out", str(out), "--title", "My runs"]
    )
    assert answer.exit_code == 0, answer.output
    assert "1 run" in answer.output
    assert "My runs" in read(out.read_text()).words
