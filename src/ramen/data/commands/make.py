"""``ramen data make``: make a corrupted set."""

from pathlib import Path
from typing import Annotated

import typer

from ramen.utils.exit_codes import exit_on_error

_NAMES = ("cifar10c", "cifar100c", "imagenetc")


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
    import json

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ramen.data import make as maker
    from ramen.data.corruptions import SEVERITIES
    from ramen.data.formats.reading import RECORD_FILE
    from ramen.utils import checks

    console = Console(stderr=True)
    columns = (TextColumn("making images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with exit_on_error(RuntimeError):  # a worker process that died
        checks.choice("NAME", name, _NAMES)
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=None)

            def show(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            corruptions, severities = corruption or maker.ALL_CORRUPTIONS, severity or SEVERITIES
            if name == "imagenetc":
                maker.make_imagenet_c(source, out, corruptions, severities, seed, workers, show)
            else:
                maker.make_cifar_c(source, out, name, corruptions, severities, seed, workers, show)
        record = json.loads((out / RECORD_FILE).read_text())
    if "frost" in record:
        console.print(f"frost: {record['frost']}", highlight=False)
    typer.echo(out)
