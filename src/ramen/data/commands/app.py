"""``ramen data``: list data sets, check their files, download them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ramen.data.commands.make import make
from ramen.utils.exit_codes import exit_on_error

app = typer.Typer(no_args_is_help=True, help="Data sets: list, verify, download or make them.")
app.command("make")(make)

_Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print results as JSON to standard output, everything else to standard error."
    ),
]
_Name = Annotated[str, typer.Argument(help="A data set; `ramen data list` shows them.")]


@app.command("list")
def list_command(json_output: _Json = False) -> None:
    """List the data sets, the layout of their files, and where to get them."""
    from ramen.data.registry import describe, list_datasets

    datasets = [describe(name) for name in list_datasets()]
    if json_output:
        facts = [
            {
                "name": info.name,
                "title": info.title,
                "classes": info.classes,
                "domains": info.domains,
                "pictures": info.images,
                "layout": info.layout,
                "source": info.source,
                "downloadable": info.downloadable,
                "options": info.options,
            }
            for info in datasets
        ]
        typer.echo(json.dumps(facts, indent=2))
        return
    for info in datasets:
        counts = f"{info.classes} classes, {info.domains} domains" if info.classes else "classes as found"
        typer.echo(f"{info.name:15} {info.title}: {counts}")
        typer.echo(f"{'':15} files: {info.layout}")
        download = f"`ramen data download {info.name}`, or " if info.downloadable else ""
        typer.echo(f"{'':15} from: {download}{info.source}")


@app.command()
def verify(
    name: _Name,
    root: Annotated[
        Path,
        typer.Option(
            help="The folder with the files; the CSV file for `manifest`, the .npz file for `arrays`, "
            "the TOML file for `potpourri`."
        ),
    ],
    severity: Annotated[
        int | None, typer.Option(min=1, max=5, help="Severity of CIFAR-C and ImageNet-C.")
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(help="A domain or corruption; may be repeated. By default the usual ones."),
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option(help="ImageNet-C: a file with one class folder and its name per line.")
    ] = None,
    image_list: Annotated[
        Path | None,
        typer.Option(help="The listed 5,000 images of ImageNet-C: a file with one class/image per line."),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every image file.")] = False,
    json_output: _Json = False,
) -> None:
    """Check the files of a data set, and report what is missing and where to get it."""
    from ramen.data.verification import verify as check

    given = {"severity": severity, "domains": domain, "class_names": class_names, "image_list": image_list}
    options: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    with exit_on_error(), _progress() as progress:
        result = check(name, root, deep=deep, progress=progress, **options)
    if json_output:
        typer.echo(json.dumps(result.as_dict(), indent=2))
    else:
        total = sum(result.domains.values())
        typer.echo(f"{name} in {result.root}: {result.classes} classes, {total:,} images")
        for domain_name, count in result.domains.items():
            typer.echo(f"  {domain_name:20} {count:9,}")
        for finding in result.findings:
            typer.echo(f"{finding.level}: {finding}")
        typer.echo("no problems found" if result.ok else "problems found")
    if not result.ok:
        raise typer.Exit(1)


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="cifar10c or cifar100c.")],
    root: Annotated[Path, typer.Option(help="The folder in which the folder of the data set is created.")],
    url: Annotated[str | None, typer.Option(help="Another address of the same archive.")] = None,
    keep_archive: Annotated[
        bool, typer.Option("--keep-archive", help="Keep the archive after unpacking it.")
    ] = False,
) -> None:
    """Download a released archive, check and unpack it; an interrupted download is resumed."""
    from ramen.data.downloads import download as get

    with exit_on_error(), _progress() as progress:
        folder = get(name, root, url=url, keep_archive=keep_archive, progress=progress)
    typer.echo(f"{name} is in {folder}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a bar on standard error for each long step."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show
