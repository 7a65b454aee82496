"""Options that ``ramen classify`` and ``ramen serve`` share: the model, the method, where it computes."""

from pathlib import Path
from typing import Annotated

import typer

ClassesFile = Annotated[Path | None, typer.Option(help="A file with one class name per line.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="ARCH/TAG of open_clip such as ViT-B-16/openai, or a form that `ramen models list` shows. "
        "Default: the tiny model of the package, for drawings only."
    ),
]
MethodName = Annotated[str, typer.Option(help="The method; `ramen describe` lists them.")]
MethodSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="PARAMETER=VALUE of the method, in place of what it chooses. Repeatable."),
]
Templates = Annotated[
    list[str] | None,
    typer.Option(help="A set of prompt templates, or a template with {} for the class name; repeatable."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ... Default: cuda if available.")]
DType = Annotated[
    str | None,
    typer.Option(help="The dtype of the encoder's weights. Default: float16 on cuda, else float32."),
]
MaxPixels = Annotated[int | None, typer.Option(min=1, help="Refuse larger images. Default: 33,554,432.")]
