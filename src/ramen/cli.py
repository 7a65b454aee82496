"""The command line: ``ramen COMMAND``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ramen.data.commands.app import app as data_app
from ramen.doctor.command import doctor
from ramen.experiments.commands.compare import compare
from ramen.experiments.commands.models import app as models_app
from ramen.experiments.commands.report import report
from ramen.experiments.commands.run import run
from ramen.experiments.commands.study import study
from ramen.experiments.commands.sweep import sweep
from ramen.utils.cublas import without_workspaces

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Test-time adaptation of CLIP-like models on mixed-domain image streams.",
)
for command in (run, compare, sweep, report, study, doctor):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(models_app, name="models")


@app.callback()
def main() -> None:
    """Set up what every command needs."""
    without_workspaces()


@app.command()
def describe(
    name: Annotated[
        str | None, typer.Argument(help="Name of a method. Without it, all methods are listed, one per line.")
    ] = None,
) -> None:
    """Describe a method: its paper, what it updates, what it predicts with, its parameters."""
    from ramen.methods._registry import describe as record
    from ramen.methods._registry import list_methods

    if name is None:
        for method in list_methods():
            typer.echo(f"{method:10} {record(method).title}")
        return
    try:
        typer.echo(record(name))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None


@app.command()
def demo(
    classes: Annotated[
        str | None, typer.Option(help="Class names, separated by commas. By default, all that can be drawn.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A method to run beside zero-shot; may be repeated. By default, EntMin, Tent and Ramen."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the stream.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Run a short stream, about ten seconds.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results and the figure.")] = Path("ramen-demo"),
    json_output: Annotated[
        bool,
        typer.Option("--json", help="Print the results as JSON on stdout and everything else on stderr."),
    ] = False,
) -> None:
    """Show a tiny CLIP adapting to a mixed stream of drawings: no downloads, about a minute."""
    from rich.console import Console

    from ramen.experiments import demo as demonstration

    names = None if classes is None else [name.strip() for name in classes.split(",") if name.strip()]
    try:
        results = demonstration.run(
            classes=names,
            methods=method or demonstration.METHODS,
            seed=seed,
            quick=quick,
            out=out,
            console=Console(stderr=json_output),
        )
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    if json_output:
        typer.echo(json.dumps(results, indent=2))
