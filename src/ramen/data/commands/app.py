"""``ramen data``: which data sets there are, whether their files are sound, fetching them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ramen.data.commands.make import make

app = typer.Typer(no_args_is_help=True, help="Data sets: list, verify, download, make.")
app.command("make")(make)

_Json = Annotated[
    bool, typer.Option("--json", help="Results on standard output, everything else on standard error.")
]
_Name = Annotated[str, typer.Argument(help="A data set; `ramen data list` shows them.")]


@app.command("list")
def list_command(json_output: _Json = False) -> None:
    """Which data sets there are, how their files must lie, and where to get them."""
    from ramen.data.registry import describe, list_datasets

    records = [describe(name) for name in list_datasets()]
    if json_output:
        facts = (
            "name",
            "title",
            "classes",
            "domains",
            "pictures",
            "layout",
            "source",
            "downloadable",
            "options",
        )
        typer.echo(
            json.dumps([{fact: getattr(record, fact) for fact in facts} for record in records], indent=2)
        )
        return
    for record in records:
        counts = (
            f"{record.classes} classes, {record.domains} domains" if record.classes else "classes as found"
        )
        typer.echo(f"{record.name:15} {record.title}: {counts}")
        typer.echo(f"{'':15} files: {record.layout}")
        download = f"`ramen data download {record.name}`, or " if record.downloadable else ""
        typer.echo(f"{'':15} from: {download}{record.source}")


@app.command()
def verify(
    name: _Name,
    root: Annotated[Path, typer.Option(help="The folder with the files; for `manifest` the CSV file.")],
    severity: Annotated[int | None, typer.Option(min=1, max=5, help="Of CIFAR-C and ImageNet-C.")] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(help="A domain or corruption; may be given again. The usual ones without it."),
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option(help="ImageNet-C: a file with a class folder and its name a line.")
    ] = None,
    image_list: Annotated[
        Path | None, typer.Option(help="The 5,000 of ImageNet-C: a file with class/image a line.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every image file.")] = False,
    json_output: _Json = False,
) -> None:
    """Check a data set's files, and say what is missing and where to get it."""
    from ramen.data.verify import verify as check

    given = {"severity": severity, "domains": domain, "class_names": class_names, "image_list": image_list}
    options: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    try:
        with _progress() as advance:
            result = check(name, root, deep=deep, advance=advance, **options)
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from None
    if json_output:
        typer.echo(json.dumps(result.as_dict(), indent=2))
    else:
        total = sum(result.domains.values())
        typer.echo(f"{name} in {result.root}: {result.classes} classes, {total:,} pictures")
        for found, count in result.domains.items():
            typer.echo(f"  {found:20} {count:9,}")
        for finding in result.findings:
            typer.echo(f"{finding.level}: {finding}")
        typer.echo("sound" if result.ok else "not sound")
    if not result.ok:
        raise typer.Exit(1)


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="cifar10c or cifar100c.")],
    root: Annotated[Path, typer.Option(help="The folder to put the data set's folder in.")],
    url: Annotated[str | None, typer.Option(help="Another place that has the same archive.")] = None,
    keep_archive: Annotated[
        bool, typer.Option("--keep-archive", help="Leave the archive there when it is unpacked.")
    ] = False,
) -> None:
    """Fetch a released archive, check and unpack it; what was broken off goes on where it ended."""
    from ramen.data.download import download as get

    try:
        with _progress() as advance:
            folder = get(name, root, url=url, keep_archive=keep_archive, advance=advance)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{name} is in {folder}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on standard error for each thing that takes long."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def advance(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield advance
