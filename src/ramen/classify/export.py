"""``ramen export``: a classifier that does not adapt, as an ONNX file."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ramen.models import options
from ramen.utils.commands import exit_on_error

if TYPE_CHECKING:
    from torch import Tensor

    from ramen.models.classifier import ZeroShotClassifier

_BATCH = 32


@dataclass(frozen=True)
class ExportedModel:
    """A model in fp32 on the CPU, and the classes that it is for."""

    model: str
    classes: Sequence[str] | None
    templates: str | tuple[str, ...]
    device: str = "cpu"
    dtype: str = "float32"


def export(
    out: Annotated[Path, typer.Option(help="The ONNX file.")],
    classes: Annotated[str | None, typer.Option(help="Class names, separated by commas.")] = None,
    classes_file: options.ClassesFile = None,
    model: options.Model = None,
    templates: options.Templates = None,
    snapshot: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PHOTOS",
            help="Files, folders or patterns of your images: move the norm parameters by the mean of Ramen's "
            "steps for them, and freeze them there. Repeatable. Without it: zero-shot.",
        ),
    ] = None,
    settings: options.MethodSettings = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a model without adaptation as one ONNX graph, checked with onnxruntime.

    A model that adapts has a memory and needs gradients: no ONNX file can hold that. This writes the
    zero-shot classifier, or with --snapshot one with norm parameters moved to fit your images on average.
    """
    from ramen.models import prompts
    from ramen.models.export import write_onnx
    from ramen.models.names import TINY, MissingWeightsError, load_classifier

    with exit_on_error(MissingWeightsError, ModuleNotFoundError):
        names = options.class_names(classes, classes_file, model or TINY)
        chosen = options.template_choice(templates) if templates else prompts.ENSEMBLE
        classifier = load_classifier(ExportedModel(model or TINY, names, chosen))
        affine, about = None, "zero-shot"
        if snapshot:
            affine, about = _snapshot(classifier, snapshot, settings or [])
        elif settings:
            raise ValueError("--set belongs to --snapshot: it is for Ramen, which computes the steps")
        written = write_onnx(classifier, out, affine, about)
    facts = {"file": str(written.path), "about": about, "difference_from_torch": written.difference}
    if json_output:
        typer.echo(json.dumps(facts, indent=2))
    else:
        typer.echo(
            f"{out}: {about}; its logits differ from torch's by {written.difference:.1e} of the largest"
        )


def _snapshot(
    classifier: "ZeroShotClassifier", photos: Sequence[str], settings: list[str]
) -> tuple["Tensor", str]:
    """The norm parameters, moved by the mean step for these images, and what that is."""
    from ramen.classify.files import Photos
    from ramen.classify.snapshot import mean_step
    from ramen.experiments.values import overrides_by_method
    from ramen.methods._registry import create
    from ramen.methods.ramen import Ramen

    method = create("ramen", classifier, **overrides_by_method(["ramen"], settings)["ramen"])
    assert isinstance(method, Ramen)
    paths = Photos.from_arguments(photos, sys.stdin.buffer).find()
    step, count = mean_step(method, _batches(classifier, paths))
    return classifier.encoder.base + step, f"frozen snapshot, the mean step of {count} images"


def _batches(classifier: "ZeroShotClassifier", paths: Sequence[str]) -> "Iterator[Tensor]":
    """The images that can be read; a warning says which cannot."""
    for start in range(0, len(paths), _BATCH):
        skipped: dict[int, str] = {}
        images = classifier.preprocess(paths[start : start + _BATCH], on_error="skip", skipped=skipped)
        for reason in skipped.values():
            typer.echo(f"warning: left out: {reason}", err=True)
        if len(images):
            yield images
