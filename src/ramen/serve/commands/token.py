"""``ramen token``: who may use a service, and for what."""

from pathlib import Path
from typing import Annotated

import typer

from ramen.utils.exit_codes import exit_on_error

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke the tokens of a service.")

TokensFile = Annotated[
    Path, typer.Option("--file", help="The file of tokens that `ramen serve --tokens` reads.")
]


@app.command()
def create(
    file: TokensFile,
    name: Annotated[str, typer.Option(help="Who will hold the token; appears in the server's log.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What it may do: classify, manage (create, reset, delete streams) or metrics. Repeatable."
        ),
    ],
    stream: Annotated[
        list[str] | None,
        typer.Option(help="A stream, or a pattern such as 'camera-*'. Repeatable. Default: all streams."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="A date, or date and time, after which it is not valid.")
    ] = None,
) -> None:
    """Create a token and print it: the only time that it is shown. The file keeps a hash of it."""
    from ramen.serve.http.tokens import create_token

    with exit_on_error():
        typer.echo(create_token(file, name, scope, stream or ["*"], expires))


@app.command("list")
def list_tokens(file: TokensFile) -> None:
    """List the tokens of a file: names, scopes, streams."""
    from ramen.serve.http.tokens import read_tokens

    with exit_on_error():
        if not file.exists():
            raise FileNotFoundError(f"there is no file of tokens at {file}")
        records = read_tokens(file)
    for record in records:
        ends = "never expires" if record.expires is None else f"expires {record.expires}"
        scopes, streams = ",".join(record.scopes), ",".join(record.streams)
        typer.echo(f"{record.name}  {scopes}  {streams}  created {record.created}  {ends}")


@app.command()
def revoke(file: TokensFile, name: Annotated[str, typer.Argument(help="Name of the token.")]) -> None:
    """Remove a token; servers that use the file refuse it from then on."""
    from ramen.serve.http.tokens import revoke_token

    with exit_on_error():
        revoke_token(file, name)
    typer.echo(f"revoked {name}", err=True)
