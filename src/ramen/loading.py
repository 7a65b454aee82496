"""Models and tokenizers of open_clip, with errors that say which argument is wrong."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ramen.checks import nearest

TextEncoder = Callable[[list[str]], Tensor]


def load_open_clip(
    model: str, pretrained: str | os.PathLike[str] | None, cache_dir: str | os.PathLike[str] | None = None
) -> Any:
    """An open_clip model on the CPU in fp32, with the activation that its weights were trained with."""
    import open_clip

    weights = None if pretrained is None else os.fspath(pretrained)
    tag: dict[str, Any] = {}
    if model.startswith(("hf-hub:", "local-dir:")):
        if weights is not None:
            raise ValueError(
                f"pretrained must be None for {model}, which names its own weights, got {weights!r}"
            )
    elif model.replace("/", "-") not in open_clip.list_models():
        raise ValueError(
            f"model: open_clip has none called {model!r}{nearest(model, open_clip.list_models())}"
        )
    elif weights is not None:
        tag = open_clip.get_pretrained_cfg(model.replace("/", "-"), weights)
        if not tag and not Path(weights).is_file():
            tags = open_clip.list_pretrained_tags_by_model(model.replace("/", "-"))
            raise ValueError(
                f"pretrained: {weights!r} is no file and no tag of {model}{nearest(weights, tags)}"
            )
    try:
        return open_clip.create_model(
            model,
            pretrained=weights,
            # OpenAI's models were trained with another GELU than the architecture of that name has.
            force_quick_gelu=tag.get("quick_gelu", False),
            cache_dir=None if cache_dir is None else os.fspath(cache_dir),
            weights_only=True,  # no pickle from outside
        ).eval()
    except Exception as error:
        if weights is None:
            raise ValueError(f"model: open_clip cannot build {model}: {_shorten(error)}") from error
        hint = "" if tag else " (is it a checkpoint of that architecture?)"
        raise ValueError(
            f"pretrained: {weights!r} cannot be loaded as {model}{hint}: {_shorten(error)}"
        ) from error


def text_encoder(clip: nn.Module, model: str, cache_dir: str | os.PathLike[str] | None = None) -> TextEncoder:
    """A function from texts to unit embeddings, with the tokenizer that belongs to ``model``."""
    import open_clip

    try:
        tokenizer = open_clip.get_tokenizer(model, cache_dir=cache_dir)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the tokenizer of {model} needs the package {error.name}: pip install 'ramen-tta[transformers]'"
        ) from error
    except Exception as error:
        raise ValueError(f"model: the tokenizer of {model} cannot be loaded: {_shorten(error)}") from error
    device = next(clip.parameters()).device

    @torch.no_grad()
    def encode_text(texts: list[str]) -> Tensor:
        embeddings: Tensor = clip.encode_text(tokenizer(texts).to(device), normalize=True)  # type: ignore[operator]
        return embeddings

    return encode_text


def _shorten(error: Exception, limit: int = 600) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= limit else f"{text[:limit]} ..."
