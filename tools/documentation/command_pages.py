"""The page of commands, from the program's own help."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from ramen.cli import app

PATH = "commands.md"
_HEAD = """# Commands

What `ramen COMMAND --help` says, for every command. Exit codes: 0 done, 1 the machine failed (a full disk, no
network, no permission), 2 wrong usage.
"""


def pages() -> dict[str, str]:
    """The page, by its place on the site."""
    command = typer.main.get_command(app)
    parts = [_HEAD, *(part for path, one in _commands("ramen", command) for part in _section(path, one))]
    return {PATH: "\n\n".join(parts) + "\n"}


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from _commands(f"{path} {name}", child)


def _section(path: str, command: Any) -> Iterator[str]:
    yield f"## {path}"
    yield _text(command.help or "")
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    named = [(one, one.metavar or one.name.upper()) for one in arguments]
    places = [name if one.required else f"[{name}]" for one, name in named]
    usage = [path, *places, *(["[OPTIONS]"] if options else [])]
    yield f"```text\n{' '.join(usage)}\n```"
    rows = [_row(f"`{name}`", one) for one, name in named]
    rows += [
        _row(", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts]), one) for one in options
    ]
    if rows:
        yield "\n".join(["| | default | |", "|---|---|---|", *rows])
    if command.epilog:
        yield _text(command.epilog)


def _row(name: str, parameter: Any) -> str:
    required, default = parameter.required, parameter.default
    shown = (
        "required"
        if required
        else ""
        if default is None or default is False or callable(default)
        else default
    )
    if isinstance(shown, (list, tuple)):
        shown = ", ".join(map(str, shown))
    cell = f"`{shown}`" if shown not in ("", "required") else shown
    return f"| {name} | {cell} | {_cell(_text(parameter.help or ''))} |"


def _text(text: str) -> str:
    """Help as Markdown: click's marks for paragraphs that keep their lines are for terminals."""
    return re.sub(r"^\s*\x08\s*$", "", text, flags=re.MULTILINE).strip()


def _cell(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text).replace("|", "\\|").replace("<", "&lt;")
