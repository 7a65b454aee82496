"""``ramen token``: what it prints, what it refuses."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.serve.http.auth import TokenFile


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["token", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_create_list_revoke(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    given = ("--file", file, "--name", "gateway", "--scope", "classify", "--scope", "metrics")
    code, token, _ = run("create", *given, "--stream", "camera-*", "--expires", "2099-01-31")
    assert code == 0
    record = TokenFile(file).find(token.strip())
    assert (record.name, record.scopes, record.streams) == ("gateway", ("classify", "metrics"), ("camera-*",))
    code, listed, _ = run("list", "--file", file)
    assert code == 0
    for words in ("gateway", "classify,metrics", "camera-*", "expires 2099-01-31"):
        assert words in listed
    assert token.strip() not in listed
    assert run("revoke", "gateway", "--file", file)[0] == 0
    assert run("list", "--file", file)[1] == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "--name", "a b", "--scope", "classify"), "name of a token"),
        (("create", "--name", "a", "--scope", "all"), "scope must be one of"),
        (("create", "--name", "a"), "--scope"),
        (("list",), "no file of tokens"),
        (("revoke", "a"), "no file of tokens"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_mistakes(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    code, _, errors = run(*arguments, "--file", tmp_path / "tokens.json")
    assert code == 2
    assert words in " ".join(errors.replace("│", " ").split())
