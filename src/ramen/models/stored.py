"""An image tower and text embeddings stored in files, for a model without its text tower.

The folder contains ``config.json`` (``architecture``: arguments of open_clip's VisionTransformer, ``mean``,
``std``, ``logit_scale``, ``templates``, and a table with ``classes`` per set of classes),
``vision.safetensors`` (the tower's weights) and ``text_features.safetensors``: one tensor
(classes, templates, width) per set of classes, under the same name as in ``config.json``.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ramen.images.preprocess import Preprocess
from ramen.models import prompts
from ramen.models.checkpoints import read_safetensors
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.utils.checks import one_line

CONFIG, TOWER, TEXT = "config.json", "vision.safetensors", "text_features.safetensors"


def load_stored(
    folder: Path,
    classes: Sequence[str],
    templates: str | Sequence[str],
    device: str | torch.device,
    dtype: str | torch.dtype,
    *,
    allow_same_names: bool = False,
) -> ZeroShotClassifier:
    """A classifier for these classes and templates, if the folder has their embeddings."""
    from open_clip.transformer import VisionTransformer

    config = _config(folder / CONFIG)
    names = prompts.check_classes(classes, allow_same_names=allow_same_names)
    key = _matching(folder / CONFIG, config, names)
    features = read_safetensors(folder / TEXT, "model").get(key)
    known = config["templates"]
    if features is None or features.shape[:2] != (len(names), len(known)):
        shape = "nothing" if features is None else tuple(features.shape)
        expected = f"({len(names)} classes, {len(known)} templates, width)"
        raise ValueError(f"{folder / TEXT}: {key!r} must have the shape {expected}, got {shape}")
    tower = VisionTransformer(**config["architecture"])
    try:
        tower.load_state_dict(
            {name: t.float() for name, t in read_safetensors(folder / TOWER, "model").items()}
        )
    except RuntimeError as error:
        problem = one_line(error)
        raise ValueError(f"{folder / TOWER} does not fit the architecture of {CONFIG}: {problem}") from None
    lookup = StoredTexts(names, known, features.float())
    chosen = prompts.check_templates(templates)
    size = config["architecture"]["image_size"]
    return ZeroShotClassifier(
        tower.eval(),
        prompts.embed_classes(lookup, names, chosen),
        config["logit_scale"],
        classes=names,
        templates=chosen,
        preprocess=Preprocess(size, tuple(config["mean"]), tuple(config["std"])),
        encode_text=lookup,
        device=device,
        dtype=dtype,
        allow_same_names=allow_same_names,
    )


class StoredTexts:
    """Stands in for the missing text encoder: it knows the prompts of the stored features."""

    def __init__(self, classes: Sequence[str], templates: Sequence[str], features: Tensor) -> None:
        self._known = {
            template.replace("{}", name): features[c, t]
            for c, name in enumerate(classes)
            for t, template in enumerate(templates)
        }

    def __call__(self, texts: list[str]) -> Tensor:
        unknown = next((text for text in texts if text not in self._known), None)
        if unknown is not None:
            raise MissingPartError(f"the folder has no text encoder and no embedding of {unknown!r}")
        return torch.stack([self._known[text] for text in texts])


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"model: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"model: {path} is damaged: {error}") from None
    needed = ("architecture", "mean", "std", "logit_scale", "templates")
    missing = [name for name in needed if not isinstance(config, dict) or name not in config]
    if missing:
        raise ValueError(f"model: {path} must have {', '.join(needed)}; it lacks {', '.join(missing)}")
    return dict(config)


def _matching(path: Path, config: Mapping[str, Any], names: tuple[str, ...]) -> str:
    sets = {
        key: prompts.check_classes(value["classes"], allow_same_names=True)
        for key, value in config.items()
        if isinstance(value, dict) and "classes" in value
    }
    for key, known in sets.items():
        if known == names:
            return key
    listed = "; ".join(f"{key}: {', '.join(known[:3])}, ... ({len(known)})" for key, known in sets.items())
    asked = f"{', '.join(names[:3])}, ... ({len(names)})"
    raise ValueError(f"model: {path} has no text features for the classes {asked}; it has {listed or 'none'}")
