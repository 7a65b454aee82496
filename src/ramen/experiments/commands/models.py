"""``ramen models``."""

import json
from typing import Annotated

import typer

from ramen.experiments.commands import options

app = typer.Typer(no_args_is_help=True, help="Models: list.")


@app.callback()
def models() -> None:
    """Keep ``list`` a subcommand although it is the only one."""


@app.command("list")
def list_command(
    containing: Annotated[str, typer.Argument(help="List only names that contain this.")] = "",
    json_output: options.Json = False,
) -> None:
    """List the models that can be loaded by name, and the presets made for them."""
    from ramen.experiments.plan.known_models import list_models
    from ramen.models.by_name import FORMS

    found = list_models(containing)
    if json_output:
        typer.echo(json.dumps([{"name": m.name, "presets": list(m.presets)} for m in found], indent=2))
        return
    for model in found:
        used = f"preset {', '.join(model.presets)}" if model.presets else ""
        typer.echo(f"{model.name:48} {used}".rstrip())
    typer.echo("\nForms of a model's name:", err=True)
    for form, meaning in FORMS.items():
        typer.echo(f"  {form:18} {meaning}", err=True)
