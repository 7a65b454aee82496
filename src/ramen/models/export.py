"""A classifier as an ONNX file: image tower, class embeddings and logits in one graph, with frozen weights.

A method that adapts cannot be one such graph: it has a memory and gradients. What can be are the zero-shot
classifier, and one with other norm parameters that no longer change.
"""

import io
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen.encoder.probe import pooled
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.files import atomic_write

_INSTALL = "pip install 'ramen-tta[export]'"
_SEED = 0
_TOLERANCE = 1e-3  # of the largest logit; runtimes sum in other orders


@dataclass(frozen=True)
class WrittenFile:
    """An ONNX file that was written."""

    path: Path  # where it is
    # the largest difference of a logit from torch's for random images, relative to the largest logit
    difference: float


class FrozenClassifier(nn.Module):
    """From preprocessed images to logits and unit embeddings, without any state."""

    class_embeddings: Tensor

    def __init__(self, classifier: ZeroShotClassifier, affine: Tensor | None) -> None:
        super().__init__()
        self.tower = classifier.encoder.frozen(affine)
        self.classifier = [classifier]  # in a list: its parts are no parameters of this module
        self.register_buffer("class_embeddings", classifier.class_embeddings)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        embeddings = F.normalize(pooled(self.tower(images)).float(), dim=-1)
        return self.classifier[0].logits(embeddings, self.class_embeddings), embeddings


def write_onnx(
    classifier: ZeroShotClassifier, path: Path, affine: Tensor | None = None, about: str = "zero-shot"
) -> WrittenFile:
    """Write a classifier in fp32, and compare what onnxruntime computes from the file with torch.

    The graph has the input ``images``, any number of preprocessed images, and the outputs ``logits`` and
    ``embeddings``. The metadata of the file has the class names and the preprocessing.

    Args:
        classifier: In fp32, with a known image size.
        path: The file.
        affine: Norm parameters ``(G,)``; the pretrained ones if not given.
        about: What it is, for the metadata.
    """
    onnx, runtime = _packages()
    if classifier.dtype != torch.float32:
        raise ValueError(f"dtype must be float32 for an ONNX file, got {classifier.dtype}")
    if classifier.image_size is None:
        raise ValueError("the classifier must know its image size: give it preprocess=ramen.Preprocess(size)")
    module = FrozenClassifier(classifier, affine).eval()
    images = _noise(classifier, 3)
    model = _export(module, images[:2])
    for key, value in _facts(classifier, about).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    difference = _largest_difference(runtime, content, module, images)
    if not difference <= _TOLERANCE:
        raise ValueError(
            f"the graph computes other logits than torch, by {difference:.1%} of the largest: it was not "
            "written"
        )
    with atomic_write(path) as file:
        file.write(content)
    return WrittenFile(path, difference)


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"ONNX files need the package {error.name}: {_INSTALL}", name=error.name
        ) from error
    return onnx, onnxruntime


def _noise(classifier: ZeroShotClassifier, count: int) -> Tensor:
    assert classifier.image_size is not None
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(count, 3, *classifier.image_size, generator=generator).to(classifier.device)


@torch.no_grad()
def _export(module: FrozenClassifier, images: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter, about itself
        program = torch.onnx.export(
            module,
            (images,),
            dynamo=True,
            input_names=["images"],
            output_names=["logits", "embeddings"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def _facts(classifier: ZeroShotClassifier, about: str) -> dict[str, str]:
    from ramen import __version__

    facts: dict[str, Any] = {"about": about, "classes": list(classifier.classes), "ramen": __version__}
    if classifier.can_preprocess:
        facts["preprocess"] = classifier.preprocess.settings()
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()}


@torch.no_grad()
def _largest_difference(runtime: Any, content: bytes, module: FrozenClassifier, images: Tensor) -> float:
    """For one image, and for several: the size of a batch is free."""
    session = runtime.InferenceSession(io.BytesIO(content).getvalue(), providers=["CPUExecutionProvider"])
    largest = 0.0
    for part in (images[:1], images):
        logits = module(part)[0].cpu().numpy()
        found = session.run(["logits"], {"images": part.cpu().numpy()})[0]
        if found.shape != logits.shape or not np.isfinite(found).all():
            return float("inf")
        largest = max(largest, float(np.abs(found - logits).max() / max(np.abs(logits).max(), 1e-12)))
    return largest
