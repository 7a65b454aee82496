"""``ramen doctor`` from the command line."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Also check this model: which of its norm layers are adapted.")
    ] = None,
    json_output: Annotated[
        bool,
        typer.Option("--json", help="Print findings as JSON; all else goes to standard error."),
    ] = False,
) -> None:
    """Show what is installed, what is missing and what is slow; exits with status 1 on a problem."""
    from ramen.doctor import examine

    findings = []
    for finding in examine(model):
        findings.append(finding)
        if not json_output:
            mark = typer.style(f"{finding.level:8}", fg=_COLOURS[finding.level])
            typer.echo(f"{mark} {finding.about}: {finding.text}")
            if finding.advice:
                typer.echo(f"{'':8} -> {finding.advice}")
    counts = {level: sum(finding.level == level for finding in findings) for level in _COLOURS}
    if json_output:
        typer.echo(json.dumps({**counts, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        typer.echo(f"problems: {counts['problem']}, warnings: {counts['warning']}")
    if counts["problem"]:
        raise typer.Exit(1)
