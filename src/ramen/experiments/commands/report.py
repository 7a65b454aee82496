"""``ramen report``: results as one page."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[list[Path], typer.Argument(help="Result files, or folders with result files below.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's heading.")] = "Results",
) -> None:
    """Put results into one page with tables, figures and all settings; it needs no network."""
    from ramen.experiments.report.report import write_report

    try:
        found = write_report(results, out, title=title)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{out}: {len(found.results)} runs, {len(found.others)} other results")
