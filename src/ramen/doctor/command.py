"""``ramen doctor`` from the command line."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Also look at this model: which of its norm layers are adapted.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Findings on standard output, everything else on standard error.")
    ] = False,
) -> None:
    """What is installed, what is missing, what is slow; status 1 if something does not work."""
    from ramen.doctor import examine

    found = []
    for finding in examine(model):
        found.append(finding)
        if not json_output:
            mark = typer.style(f"{finding.level:8}", fg=_COLOURS[finding.level])
            typer.echo(f"{mark} {finding.about}: {finding.text}")
            if finding.advice:
                typer.echo(f"{'':8} -> {finding.advice}")
    counts = {level: sum(finding.level == level for finding in found) for level in _COLOURS}
    if json_output:
        typer.echo(json.dumps({**counts, "findings": [asdict(finding) for finding in found]}, indent=2))
    else:
        typer.echo(f"problems: {counts['problem']}, warnings: {counts['warning']}")
    if counts["problem"]:
        raise typer.Exit(1)
