"""Weights: those included in the package, and those that the presets need."""

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from ramen.doctor.findings import Finding


def tiny_weights() -> Iterator[Finding]:
    """Whether the weights of the tiny model are the ones that its model card describes."""
    file, card = (_tiny_folder() / name for name in ("open_clip_model.safetensors", "MODEL_CARD.md"))
    advice = "reinstall ramen-tta"
    for path in (file, card):
        if not path.is_file():
            yield Finding("tiny model", "problem", f"{path} is missing", advice)
            return
    stated = re.search(r"SHA-256 \| `([0-9a-f]{64})`", card.read_text(encoding="utf-8"))
    found = sha256(file.read_bytes()).hexdigest()
    if stated is None or stated[1] != found:
        yield Finding(
            "tiny model", "problem", f"{file} is damaged: its SHA-256 is not its model card's", advice
        )
    else:
        yield Finding("tiny model", "ok", f"its weights are intact (sha256 {found[:12]})")


def _tiny_folder() -> Path:
    """The same folder as in ``ramen.models.tiny_clip.model``, which cannot be imported if torch is broken."""
    return Path(__file__).parents[1] / "models" / "tiny_clip" / "weights"


def pretrained_weights() -> Iterator[Finding]:
    """Whether the weights of the presets' models have been downloaded."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from ramen.experiments.plan.presets import list_presets, load_preset

    models = sorted({str(load_preset(name).model) for name in list_presets()} - {"tiny"})
    missing = [model for model in models if not _downloaded(model)]
    folders = f"{HF_HUB_CACHE} and {_url_cache()}"
    downloaded = [model for model in models if model not in missing]
    if downloaded:
        yield Finding("weights", "ok", f"downloaded: {', '.join(downloaded)} (in {folders})")
    if missing:
        yield Finding(
            "weights",
            "warning",
            f"not downloaded, needed by presets: {', '.join(missing)} (not found in {folders})",
            "open_clip downloads them on first use; offline, give ARCH/FILE as --model",
        )


def _downloaded(model: str) -> bool:
    """Whether the file of ``ARCHITECTURE/TAG`` is in the cache of huggingface_hub or of open_clip."""
    from huggingface_hub import try_to_load_from_cache
    from open_clip import get_pretrained_cfg
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    architecture, _, tag = model.partition("/")
    facts = get_pretrained_cfg(architecture, tag)
    repository, _, name = facts.get("hf_hub", "").rpartition("/")
    names = (name, str(Path(name).with_suffix(".safetensors"))) if name else ()
    for file in (*names, HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME):
        if repository and isinstance(try_to_load_from_cache(repository, file), str):
            return True
    url = facts.get("url", "")
    return bool(url) and (_url_cache() / url.rpartition("/")[2]).is_file()


def _url_cache() -> Path:
    return Path("~/.cache/clip").expanduser()
