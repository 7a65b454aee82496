"""Commands that pages show can be typed as they are, and links inside the project lead somewhere."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from ramen.cli import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "deploy" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands_of(page: str) -> Iterator[str]:
    """The lines of code blocks that run ``ramen``."""
    for block in re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s\|\s|&&", line):
                words = re.sub(r"^\s*(?:\w+=\S+\s+)*", "", part)
                if re.match(r"ramen\s", words):
                    yield words


def mistakes(line: str) -> list[str]:
    """What is wrong with a command, without running it."""
    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return [f"there is no command {words[0]}"]
        command = command.commands[words.pop(0)]
    known = {name: one for one in command.params for name in [*one.opts, *one.secondary_opts]}
    given = [word.split("=")[0] for word in words if word.startswith("--")]
    found = [f"there is no option {name}" for name in given if name not in known and name != "--help"]
    if "--help" not in given and not hasattr(command, "commands"):
        missing = [one for one in command.params if one.required and one.param_type_name == "option"]
        found += [f"{one.opts[0]} is missing" for one in missing if not set(one.opts) & set(given)]
    return found


def test_links_inside_the_project() -> None:
    targets = [
        page.parent / target
        for page in [*PAGES, ROOT / "CONTRIBUTING.md"]
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8"))
    ]
    assert len(targets) > 10
    assert [target for target in targets if not target.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands(page: Path) -> None:
    shown = list(commands_of(page.read_text(encoding="utf-8")))
    assert {line: mistakes(line) for line in shown if mistakes(line)} == {}


def test_pages_show_commands() -> None:
    shown = [line for page in PAGES for line in commands_of(page.read_text(encoding="utf-8"))]
    assert len(shown) > 40
    assert any(line.startswith("ramen data make cifar10c") for line in shown)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ramen data make cifar10c --from X", ["--out is missing"]),
        ("ramen data make cifar10c --from X --out Y  # --nothing", []),
        ("ramen clasify photos", ["there is no command clasify"]),
        ("ramen run --seed=1 --sede 2", ["there is no option --sede"]),
        ("ramen serve --help", []),
    ],
)
def test_mistakes_are_found(line: str, expected: list[str]) -> None:
    assert mistakes(line) == expected
