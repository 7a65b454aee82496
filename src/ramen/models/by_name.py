"""Models by name, for experiments and the command line."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ramen.models import prompts
from ramen.models.classifier import ZeroShotClassifier
from ramen.models.stored_files import load_stored
from ramen.models.tiny_clip.model import FOLDER as TINY

FORMS = {
    "tiny": "the small model that comes with the package",
    "ARCH/TAG": "an architecture and a tag of open_clip, such as ViT-B-32/openai",
    "ARCH/FILE": "an architecture of open_clip and a checkpoint file of it",
    "hf-hub:NAME": "a model of the Hugging Face hub in open_clip's format",
    "local-dir:FOLDER": "the same in a folder",
    "stored:FOLDER": "an image tower with text embeddings in files",
    "random:ARCH": "random weights, the same each time: to try the chain without downloads",
}
_SEED = 0  # of random weights


def load_model(
    name: str,
    classes: Sequence[str],
    templates: str | Sequence[str] = prompts.ENSEMBLE,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    *,
    allow_same_names: bool = False,
) -> ZeroShotClassifier:
    """The model of that name as a classifier of these classes; ``FORMS`` has the forms of a name."""
    kind, colon, rest = name.partition(":")
    if kind == "stored" and colon:
        folder = Path(rest).expanduser()
        return load_stored(folder, classes, templates, device, dtype, allow_same_names=allow_same_names)
    architecture, pretrained = _parts(name)
    with torch.random.fork_rng(devices=[]):  # open_clip draws weights before it loads any
        torch.manual_seed(_SEED)
        return ZeroShotClassifier.from_open_clip(
            architecture,
            pretrained,
            classes,
            templates,
            device,
            dtype,
            allow_same_names=allow_same_names,
        )


def _parts(name: str) -> tuple[str, str | None]:
    """What open_clip calls model and pretrained."""
    if name == "tiny":
        return f"local-dir:{TINY}", None
    if name.startswith(("hf-hub:", "local-dir:")):
        return name, None
    if name.startswith("random:"):
        return name.removeprefix("random:"), None
    architecture, slash, pretrained = name.partition("/")
    if not (architecture and slash and pretrained):
        forms = "; ".join(f"{form}: {meaning}" for form, meaning in FORMS.items())
        raise ValueError(f"model: {name!r} is none of these forms: {forms}")
    return architecture, str(Path(pretrained).expanduser()) if "/" in pretrained else pretrained
