"""Models and tokenizers of open_clip, with errors that say which argument is wrong."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ramen.images.preprocess import Preprocess
from ramen.models.checkpoints import check_downloads, is_torchscript, read_torchscript, uses_quick_gelu
from ramen.models.text import (
    ContextPrompts,
    OpenClipPrompts,
    TextEncoder,
    TowerPrompts,
    TwoTowers,
    tower_with_tokens,
)
from ramen.utils.checks import nearest, one_line

Tokenizer = Callable[[list[str]], Tensor]

# Numbers that OpenAI's archives hold beside the weights, and a mask that open_clip makes itself.
_NOT_WEIGHTS = ("input_resolution", "context_length", "vocab_size", "attn_mask")


def load_open_clip_towers(
    model: str,
    pretrained: str | os.PathLike[str] | None,
    quick_gelu: bool | None,
    cache_dir: str | os.PathLike[str] | None,
    preprocess: Preprocess | None,
    device: torch.device,
) -> TwoTowers:
    """The parts of a model; see ``ZeroShotClassifier.from_open_clip``."""
    clip = load_open_clip(model, pretrained, quick_gelu=quick_gelu, cache_dir=cache_dir)
    image_tower, bias = clip.visual, getattr(clip, "logit_bias", None)
    if preprocess is None:
        preprocess = Preprocess.from_open_clip(image_tower.preprocess_cfg)
    logit_scale = clip.logit_scale.exp().item()  # before it moves: devices differ in the last digit
    logit_bias = 0.0 if bias is None else bias.item()
    clip.visual = None  # the rest of the model is the text tower
    tokenizer = load_tokenizer(model, cache_dir)
    encode_text = text_encoder(clip.to(device), tokenizer)
    return TwoTowers(image_tower, encode_text, tokenizer, preprocess, logit_scale, logit_bias)


def load_open_clip(
    model: str,
    pretrained: str | os.PathLike[str] | None,
    *,
    quick_gelu: bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Any:
    """Load an open_clip model on the CPU in fp32, with the activation that its weights were trained with."""
    import open_clip

    weights, tag = _check_names(model, pretrained)
    if weights is not None and not tag and is_torchscript(Path(weights)):
        return _from_torchscript(model, Path(weights), quick_gelu)
    if quick_gelu is None:
        # OpenAI's models were trained with another GELU than open_clip's architecture of that name uses.
        quick_gelu = bool(tag.get("quick_gelu", False))
    check_downloads(model, tag, cache_dir)
    try:
        return open_clip.create_model(
            model,
            pretrained=weights,
            force_quick_gelu=quick_gelu,
            cache_dir=None if cache_dir is None else os.fspath(cache_dir),
            require_pretrained=weights is not None or _names_its_weights(model),
            weights_only=True,  # never unpickle a file from outside
        ).eval()
    except Exception as error:
        if weights is None:
            raise ValueError(f"model: open_clip cannot load {model}: {one_line(error)}") from error
        hint = "" if tag else " (is it a checkpoint of that architecture?)"
        raise ValueError(
            f"pretrained: {weights!r} cannot be loaded as {model}{hint}: {one_line(error)}"
        ) from error


def _check_names(model: object, pretrained: object) -> tuple[str | None, dict[str, Any]]:
    """The weights as a string, and open_clip's record of them if they are one of its tags."""
    import open_clip

    if not isinstance(model, str):
        raise TypeError(f"model must be the name of an open_clip model, got {type(model).__name__}")
    if pretrained is not None and not isinstance(pretrained, str | os.PathLike):
        raise TypeError(f"pretrained must be a tag, a path or None, got {type(pretrained).__name__}")
    weights = None if pretrained is None else os.fspath(pretrained)
    if _names_its_weights(model):
        if weights is not None:
            raise ValueError(
                f"pretrained must be None for {model}, which names its own weights, got {weights!r}"
            )
        return None, {}
    known, name = open_clip.list_models(), model.replace("/", "-")
    if name not in known:
        raise ValueError(f"model: open_clip has no model {model!r}{nearest(model, known)}")
    tag: dict[str, Any] = {} if weights is None else open_clip.get_pretrained_cfg(name, weights)
    if weights is not None and not tag and not Path(weights).is_file():
        tags = open_clip.list_pretrained_tags_by_model(name)
        raise ValueError(
            f"pretrained: {weights!r} is neither a file nor a tag of {model}{nearest(weights, tags)}"
        )
    return weights, tag


def _names_its_weights(model: str) -> bool:
    return model.startswith(("hf-hub:", "local-dir:"))


def _from_torchscript(model: str, path: Path, quick_gelu: bool | None) -> Any:
    """A model with the weights of a TorchScript archive, OpenAI's format, whose program is not executed."""
    import open_clip

    gelu = uses_quick_gelu(path) if quick_gelu is None else quick_gelu
    weights = {
        name: value.float() for name, value in read_torchscript(path).items() if name not in _NOT_WEIGHTS
    }
    clip = open_clip.create_model(model, pretrained=None, force_quick_gelu=gelu)
    own = clip.state_dict()
    missing, other = own.keys() - weights.keys(), weights.keys() - own.keys()
    wrong = sorted(name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape)
    if missing or other or wrong:
        parts = {"it lacks": missing, "it has besides": other, "of another shape:": wrong}
        listed = "; ".join(f"{what} {', '.join(sorted(names)[:3])}" for what, names in parts.items() if names)
        raise ValueError(f"pretrained: '{path}' cannot be loaded as {model} ({listed})")
    clip.load_state_dict(weights)
    return clip.eval()


def load_tokenizer(model: str, cache_dir: str | os.PathLike[str] | None = None) -> Tokenizer:
    """The tokenizer of ``model``: from texts to token numbers ``(texts, length)``."""
    import open_clip

    try:
        tokenizer: Tokenizer = open_clip.get_tokenizer(model, cache_dir=cache_dir)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the tokenizer of {model} needs the package {error.name}: pip install 'ramen-tta[transformers]'"
        ) from error
    except Exception as error:
        raise ValueError(f"model: the tokenizer of {model} cannot be loaded: {one_line(error)}") from error
    return tokenizer


def text_encoder(clip: nn.Module, tokenizer: Tokenizer) -> TextEncoder:
    """A function from texts to unit embeddings; a ``PromptTextEncoder`` if the text tower allows it.

    The model is from then on one that is not trained.
    """
    clip.requires_grad_(False)
    kind = _TextEncoder if tower_with_tokens(clip) is None else _PromptTextEncoder
    return kind(clip, tokenizer)


class _TextEncoder:
    """From texts to unit embeddings; also as a function of norm parameters."""

    def __init__(self, clip: nn.Module, tokenizer: Tokenizer) -> None:
        self._clip: Any = clip
        self._tokenizer = tokenizer

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> Tensor:
        embeddings: Tensor = self._clip.encode_text(self._tokens(texts), normalize=True)
        return embeddings

    def affine_prompts(self, texts: Sequence[str], at_once: int) -> TowerPrompts:
        def embed(clip: Any, inputs: Mapping[str, Tensor]) -> Tensor:
            embeddings: Tensor = clip.encode_text(inputs["tokens"])
            return embeddings

        return TowerPrompts(self._clip, {"tokens": self._tokens(list(texts))}, embed, at_once)

    def _tokens(self, texts: list[str]) -> Tensor:
        return self._tokenizer(texts).to(next(self._clip.parameters()).device)

    def __deepcopy__(self, memo: object) -> "_TextEncoder":
        return self  # a text tower is large, and never changes


class _PromptTextEncoder(_TextEncoder):
    """The same, and it can embed prompts of vectors."""

    def context_prompts(self, template: str, classes: Sequence[str]) -> ContextPrompts:
        return OpenClipPrompts(self._clip, self._tokenizer, template, classes)
