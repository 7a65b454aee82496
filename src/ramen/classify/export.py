"""``ramen export``: a classifier that does not adapt, as an ONNX file."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ramen.models import options
from ramen.utils.commands import exit_on_error

if TYPE_CHECKING:
    from torch import Tensor

    from ramen.methods.ramen import Ramen
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
    from ramen.experiments.values import overrides_by_method
    from ramen.methods._registry import create
    from ramen.methods.ramen import Ramen

    method = create("ramen", classifier, **overrides_by_method(["ramen"], settings)["ramen"])
    assert isinstance(method, Ramen)
    paths = Photos.from_arguments(photos, sys.stdin.buffer).find()
    step, count = mean_step(method, _batches(classifier, paths))
    return classifier.encoder.base + step, f"frozen snapshot, the mean step of {count} images"


def mean_step(method: "Ramen", batches: Iterable["Tensor"]) -> tuple["Tensor", int]:
    """The mean of the images' own steps ``(G,)``, and how many images it is of.

    Ramen moves the norm parameters separately for each image. Their mean fits a stream on average, every
    image alike. The images enter the method's memory, as if it had answered them.

    Args:
        method: Ramen, whose memory may be empty.
        batches: Preprocessed images. Those whose pixels, embeddings or gradients are not finite do not count.
    """
    import torch

    from ramen.methods._losses import entropy
    from ramen.methods._passes import Pass, give
    from ramen.methods._runner import learning, receive
    from ramen.utils.numerics import plain_numerics

    classifier = method.classifier
    base = classifier.encoder.base
    total, count = torch.zeros_like(base, dtype=torch.float64), 0
    with torch.no_grad(), plain_numerics():
        for batch in batches:
            images, usable, _ = receive(method, classifier.check_images(batch))
            seen = give(classifier, Pass(images, base, entropy, each=True))
            usable &= seen.embeddings.isfinite().all(1) & seen.gradient.isfinite().all(1)
            step = learning(method, len(images), None, partial(method.step, seen, usable))
            method.images_seen += len(images)
            total += (step.affine[usable] - base).double().sum(0)
            count += int(usable.sum())
    if not count:
        raise ValueError("batches must hold at least one image that can be used, got none")
    return (total / count).to(base.dtype), count


def _batches(classifier: "ZeroShotClassifier", paths: Sequence[str]) -> "Iterator[Tensor]":
    """The images that can be read; a warning says which cannot."""
    for start in range(0, len(paths), _BATCH):
        skipped: dict[int, str] = {}
        images = classifier.preprocess(paths[start : start + _BATCH], on_error="skip", skipped=skipped)
        for reason in skipped.values():
            typer.echo(f"warning: left out: {reason}", err=True)
        if len(images):
            yield images
