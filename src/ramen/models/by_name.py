"""Models by name, for experiments and the command line."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ramen.models import prompts
from ramen.models.classifier import ZeroShotClassifier
from ramen.models.stored_files import load_stored
from ramen.models.tiny_clip.model import FOLDER as TINY

FORMS = {
    "tiny": "the tiny CLIP included in the package",
    "ARCH/TAG": "an open_clip architecture and tag, such as ViT-B-32/openai",
    "ARCH/FILE": "an open_clip architecture and a checkpoint file",
    "hf-hub:NAME": "a model on the Hugging Face hub in open_clip's format",
    "local-dir:FOLDER": "a folder with a model in that format",
    "transformers:NAME": "a model of transformers with a text tower: on the Hugging Face hub, or a folder",
    "timm:NAME": "a network of timm with its own head, for its own classes; timm:NAME/FILE with your weights",
    "stored:FOLDER": "a folder with an image tower and text embeddings",
    "random:ARCH": "random weights, the same each time: to try everything without downloads",
}
_SEED = 0  # of the random weights


def load_model(
    name: str,
    classes: Sequence[str],
    templates: str | Sequence[str] = prompts.ENSEMBLE,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    *,
    allow_same_names: bool = False,
) -> ZeroShotClassifier:
    """Load a model by name as a classifier for these classes; ``FORMS`` lists the forms of a name."""
    kind, colon, rest = name.partition(":")
    if kind == "stored" and colon:
        folder = Path(rest).expanduser()
        return load_stored(folder, classes, templates, device, dtype, allow_same_names=allow_same_names)
    if kind == "transformers" and rest:
        return ZeroShotClassifier.from_transformers(
            rest, classes, None, templates, device, dtype, allow_same_names=allow_same_names
        )
    if kind == "timm" and rest:
        return load_network(name, classes, device, dtype, allow_same_names=allow_same_names)
    architecture, pretrained = _parts(name)
    with torch.random.fork_rng(devices=[]):  # open_clip draws random weights before it loads others
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


def load_network(
    name: str,
    classes: Sequence[str] | None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    *,
    allow_same_names: bool = False,
) -> ZeroShotClassifier:
    """Load ``timm:NAME`` or ``timm:NAME/FILE`` with its own head; ``classes`` only names its classes."""
    tag, _, file = name.removeprefix("timm:").partition("/")
    return ZeroShotClassifier.from_timm(
        tag,
        classes=classes,
        pretrained=Path(file).expanduser() if file else True,
        device=device,
        dtype=dtype,
        allow_same_names=allow_same_names,
    )


def _parts(name: str) -> tuple[str, str | None]:
    """The arguments ``model`` and ``pretrained`` of open_clip."""
    if name == "tiny":
        return f"local-dir:{TINY}", None
    if name.startswith(("hf-hub:", "local-dir:")):
        return name, None
    if name.startswith("random:"):
        return name.removeprefix("random:"), None
    architecture, slash, pretrained = name.partition("/")
    if not (architecture and slash and pretrained):
        forms = "; ".join(f"{form}: {meaning}" for form, meaning in FORMS.items())
        raise ValueError(f"model: {name!r} has none of these forms: {forms}")
    return architecture, str(Path(pretrained).expanduser()) if "/" in pretrained else pretrained
