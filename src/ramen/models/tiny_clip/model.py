"""The tiny CLIP included in the package, loaded like any other open_clip model."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ramen.models import prompts
from ramen.models.classifier import ZeroShotClassifier

FOLDER = Path(__file__).parent / "weights"


def load_tiny(
    classes: Sequence[str],
    templates: str | Sequence[str] = prompts.ENSEMBLE,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
) -> ZeroShotClassifier:
    """A classifier with the tiny CLIP; its text tower embeds any class names."""
    return ZeroShotClassifier.from_open_clip(f"local-dir:{FOLDER}", None, classes, templates, device, dtype)
