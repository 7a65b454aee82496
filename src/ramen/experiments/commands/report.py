"""``ramen report``: results on one page."""

from pathlib import Path
from typing import Annotated

import typer

from ramen.utils.exit_codes import exit_on_error


def report(
    results: Annotated[list[Path], typer.Argument(help="Result files, or folders to search for them.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's heading.")] = "Results",
) -> None:
    """Write one self-contained HTML page with the tables, figures and settings of results."""
    from ramen.experiments.report.report import write_report

    with exit_on_error():
        found = write_report(results, out, title=title)
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{out}: {len(found.results)} runs, {len(found.others)} other results")
