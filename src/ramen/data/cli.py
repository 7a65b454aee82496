"""``ramen data``: list data sets, check their files, download or make them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ramen.utils.commands import exit_on_error

app = typer.Typer(no_args_is_help=True, help="Data sets: list, verify, download or make them.")

_Json = Annotated[
    bool, typer.Option("--json", help="Print JSON to standard output, all else to standard error.")
]
_Name = Annotated[str, typer.Argument(help="A data set; `ramen data list` shows them.")]


@app.command("list")
def list_command(json_output: _Json = False) -> None:
    """List the data sets, the layout of their files, and where to get them."""
    from ramen.data.catalogue import describe, list_datasets

    datasets = [describe(name) for name in list_datasets()]
    if json_output:
        counted = ("classes", "domains", "images")
        keys = ("name", "title", *counted, "layout", "source", "downloadable", "options")
        # "pictures" is what earlier versions called them
        facts = [{"pictures" if k == "images" else k: getattr(i, k) for k in keys} for i in datasets]
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
            help="The folder with the files; the CSV file for `manifest`, the .npz file for `arrays`."
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
    name: Annotated[str, typer.Argument(help="cifar10c, cifar100c or imagenetc.")],
    root: Annotated[Path, typer.Option(help="The folder in which the folder of the data set is created.")],
    url: Annotated[
        str | None,
        typer.Option(help="Another address of the same archive; of the folder of its archives, if several."),
    ] = None,
    keep_archive: Annotated[
        bool, typer.Option("--keep-archive", help="Keep an archive after unpacking it.")
    ] = False,
) -> None:
    """Download released archives, check and unpack them; an interrupted download is resumed."""
    from ramen.data.downloads import download as get

    with exit_on_error(), _progress() as progress:
        folder = get(name, root, url=url, keep_archive=keep_archive, progress=progress)
    typer.echo(f"{name} is in {folder}")


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="cifar10c, cifar100c, or imagenetc for any folder of images.")],
    source: Annotated[
        Path,
        typer.Option(
            "--from",
            help="The clean images. For CIFAR: the unpacked python version, an .npz file with images and "
            "labels, images.npy with labels.npy next to it, or a folder class/image. For imagenetc: a folder "
            "class/image.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; an interrupted run is resumed in it.")],
    severity: Annotated[
        list[int] | None, typer.Option(min=1, max=5, help="May be repeated. By default all five.")
    ] = None,
    corruption: Annotated[
        list[str] | None, typer.Option(help="May be repeated. By default all nineteen.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Determines everything random.")] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes. By default the number of cores.")
    ] = None,
) -> None:
    """Make a corrupted set with the published parameters, in the layout of the released one."""
    from rich.console import Console

    from ramen.data import make as maker
    from ramen.data.reading import RECORD_FILE
    from ramen.utils import checks

    chosen: dict[str, Any] = {"seed": seed, "workers": workers}
    chosen |= {"corruptions": corruption} if corruption else {}
    chosen |= {"severities": severity} if severity else {}
    with exit_on_error(RuntimeError):  # a worker process that died
        checks.choice("NAME", name, (*maker.CIFAR_NAMES, "imagenetc"))
        with _progress("making images") as show:
            chosen["progress"] = lambda done, total: show("making images", done, total)
            if name == "imagenetc":
                maker.make_imagenet_c(source, out, **chosen)
            else:
                maker.make_cifar_c(source, out, name, **chosen)
        record = json.loads((out / RECORD_FILE).read_text())
    if "frost" in record:
        Console(stderr=True).print(f"frost: {record['frost']}", highlight=False)
    typer.echo(out)


@contextmanager
def _progress(counted: str = "") -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a bar on standard error for each long step: of bytes, or of what is ``counted``."""
    from rich import progress
    from rich.console import Console

    amount = progress.MofNCompleteColumn() if counted else progress.DownloadColumn()
    columns = ("{task.description}", progress.BarColumn(), amount, progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=not counted) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show
