"""The command line: ``ramen COMMAND``."""

import json
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import Annotated

import typer

from ramen import __version__
from ramen.classify.command import EPILOG as CLASSIFY_EPILOG
from ramen.classify.command import classify
from ramen.classify.export import export
from ramen.data.cli import app as data_app
from ramen.doctor import doctor
from ramen.experiments.commands import compare, report, reproduce, run, sweep, tune
from ramen.experiments.commands import models as models_app
from ramen.methods._registry import imported
from ramen.models.options import split_names
from ramen.serve.command import EPILOG as SERVE_EPILOG
from ramen.serve.command import serve, token_app
from ramen.utils.commands import Imports, exit_on_error, without_workspaces

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Test-time adaptation of CLIP-like models on mixed-domain image streams.",
)
app.command(epilog=CLASSIFY_EPILOG)(classify)
app.command(epilog=SERVE_EPILOG)(serve)
for command in (run, compare, sweep, tune, reproduce, report, export, doctor):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(models_app, name="models")
app.add_typer(token_app, name="token")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ramen {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Set up what every command needs."""
    without_workspaces()


@app.command()
def methods(
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the record of each method as JSON on stdout.")
    ] = False,
    imports: Imports = None,
) -> None:
    """List the methods: titles, where they were published, where they come from.

    Those without a source are part of this package. `ramen describe NAME` says more.
    """
    from ramen.experiments.values import plain
    from ramen.methods._registry import describe, list_methods

    with exit_on_error():
        imported(imports)
    records = [describe(name) for name in list_methods()]
    if json_output:
        typer.echo(json.dumps([plain(asdict(record)) for record in records], indent=2))
        return
    for record in records:
        venue = f" ({record.venue})" if record.venue else ""
        source = f"  [{record.source}]" if record.source else ""
        typer.echo(f"{record.name:10} {record.title}{venue}{source}")


@app.command()
def describe(
    name: Annotated[
        str | None, typer.Argument(help="Name of a method. Without it, all methods are listed, one per line.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Class names, separated by commas: also show what the method chooses for them."),
    ] = None,
    model: Annotated[str, typer.Option(help="The model to choose for, with --classes.")] = "tiny",
    imports: Imports = None,
) -> None:
    """Describe a method: its paper, what it updates, what it predicts with, what its parameters mean."""
    from ramen.methods._registry import describe as record

    with exit_on_error():
        imported(imports)
    if name is None:
        methods()
        return
    try:
        typer.echo(record(name))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None
    if classes is not None:
        from ramen.methods._registry import create
        from ramen.models.names import load_model

        with exit_on_error():
            created = create(name, load_model(model, split_names(classes)))
        typer.echo(f"\nOn {model} with these classes:\n{indent(str(created.parameters), '  ')}")


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

    from ramen.classify.demo import classify_drawings
    from ramen.experiments import demo as demonstration

    console, names = Console(stderr=json_output), None if classes is None else split_names(classes)
    with exit_on_error():
        records = demonstration.run(
            classes=names,
            methods=method or demonstration.METHODS,
            seed=seed,
            quick=quick,
            out=out,
            console=console,
        )
        labelled = classify_drawings(out, console, classes=names, seed=seed, quick=quick)
    console.print(demonstration.NEXT_STEPS, highlight=False, soft_wrap=True, markup=False)
    if json_output:
        typer.echo(json.dumps({"runs": records, "classify": labelled.summary}, indent=2))
    raise typer.Exit(labelled.exit_code)
