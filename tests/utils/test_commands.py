"""Options that are the fields of a dataclass."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from ramen.utils.commands import Read, with_options


def listed(text):
    if "!" in text:
        raise ValueError(f"names must be words, got {text!r}")
    return tuple(text.split(","))


@dataclass(frozen=True)
class Request:
    path: Annotated[str, typer.Argument(help="A file.")]
    batch: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 100
    names: Annotated[tuple[str, ...], Read(str, listed), typer.Option(help="Separated by commas.")] = ("all",)
    cache: object = None


@pytest.fixture
def call():
    seen = []
    app = typer.Typer()

    @app.command()
    @with_options("unused", request=Request)
    def command(*, request: Request, quiet: Annotated[bool, typer.Option("--quiet")] = False) -> None:
        seen.append((request, quiet))

    def run(*words):
        done = CliRunner().invoke(app, words)
        return done, seen

    return run


def test_fields_are_options_and_the_command_gets_the_dataclass(call):
    _, seen = call("photo.png")
    assert seen == [(Request("photo.png"), False)]
    _, seen = call("photo.png", "--batch", "3", "--names", "a,b", "--quiet")
    assert seen[-1] == (Request("photo.png", 3, ("a", "b")), True)


@pytest.mark.parametrize(
    ("words", "named"), [(["x", "--batch", "0"], "--batch"), (["x", "--names", "!"], "names"), ([], "path")]
)
def test_mistakes_are_usage_errors(call, words, named):
    done, seen = call(*words)
    assert done.exit_code == 2
    assert named in done.output.lower()
    assert not seen


def test_help_has_all_options_and_no_field_without_an_annotation(call):
    done, _ = call("--help")
    assert "Images per batch." in done.output
    assert "--names" in done.output
    assert "cache" not in done.output
