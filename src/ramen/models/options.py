"""Options by which commands name a model, its classes and a method."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ramen.models.names import may_bring_classes

TINY_WARNING = (
    "warning: without --model the tiny model of the package is used. It knows drawings of 24 objects, no "
    "photographs: for those use --model ViT-B-16/openai, which downloads its weights."
)

ClassesFile = Annotated[Path | None, typer.Option(help="A file with one class name per line.")]
MODEL = typer.Option(
    help="ARCH/TAG of open_clip such as ViT-B-16/openai, FILE.py:FUNCTION of yours, or another form that "
    "`ramen models list` shows. Default: the tiny model of the package, for drawings only."
)
TEMPLATES = typer.Option(
    help="A set of prompt templates, or a template with {} for the class name; repeatable."
)
Model = Annotated[str | None, MODEL]
MethodName = Annotated[str, typer.Option(help="The method; `ramen describe` lists them.")]
MethodSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="PARAMETER=VALUE of the method, in place of what it chooses. Repeatable."),
]
Templates = Annotated[list[str] | None, TEMPLATES]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ... Default: cuda if available.")]
DType = Annotated[
    str | None,
    typer.Option(
        help="The dtype of the encoder's weights. Default: auto, which is float16 on cuda, bfloat16 for a "
        "large transformer on a CPU with AVX512-BF16 or AMX, else float32; what exists already keeps its own."
    ),
]
MaxPixels = Annotated[int | None, typer.Option(min=1, help="Refuse larger images. Default: 33,554,432.")]


def split_names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def class_names(listed: str | Sequence[str] | None, file: Path | None, model: str) -> tuple[str, ...] | None:
    """The classes of ``--classes`` or of ``--classes-file``; None for those that the model may bring."""
    if listed is None and file is None and may_bring_classes(model):
        return None
    if (listed is None) == (file is None):
        raise ValueError("give the classes with --classes or with --classes-file, and not with both")
    if file is None:
        return split_names(listed) if isinstance(listed, str) else tuple(listed or ())
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--classes-file: {file} cannot be read: {error}") from None
    return tuple(line.strip() for line in lines if line.strip())


def template_choice(given: Sequence[str]) -> str | tuple[str, ...]:
    return given[0] if len(given) == 1 and "{}" not in given[0] else tuple(given)
