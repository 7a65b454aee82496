"""The command line: ``ramen COMMAND``."""

from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Test-time adaptation of CLIP-like models on mixed-domain image streams.",
)


@app.callback()
def main() -> None:
    """Keep the commands as commands while there are few."""


@app.command()
def describe(
    name: Annotated[
        str | None, typer.Argument(help="A method; all of them, a line each, without it.")
    ] = None,
) -> None:
    """What a method is: its paper, what it updates, what it predicts with, its parameters."""
    from ramen.methods.registry import describe as record
    from ramen.methods.registry import list_methods

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
    images: Annotated[int, typer.Option(min=1, help="Length of the stream.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Decides the images.")] = 0,
) -> None:
    """Run every method on a small random CLIP and a random stream: shows that it runs, not that it helps."""
    from ramen.demo import run

    run(images, seed)
