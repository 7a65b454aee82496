"""Models of transformers with an image and a text tower: loading, preprocessing, text."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ramen.encoder.norms import private_copy
from ramen.encoder.probe import pooled
from ramen.encoder.towers import ImageHalf
from ramen.images.preprocess import Preprocess
from ramen.models.checkpoints import check_hub_repository
from ramen.models.text import TowerPrompts, TwoTowers
from ramen.utils.checks import one_line

_INSTALL = "pip install 'ramen-tta[transformers]'"
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_PADDED_UP_TO = 128  # tokens; longer texts are padded to the longest of a call only
_TOWERS = ("get_image_features", "get_text_features")


def load_transformers(
    name_or_model: Any,
    processor: Any,
    cache_dir: str | os.PathLike[str] | None,
    preprocess: Preprocess | None,
    device: torch.device,
) -> TwoTowers:
    """The parts of a model; see ``ZeroShotClassifier.from_transformers``."""
    if isinstance(name_or_model, str | os.PathLike):
        name = os.fspath(name_or_model)
        model = _load(name, "AutoModel", cache_dir)
        processor = _load(name, "AutoProcessor", cache_dir) if processor is None else processor
    elif isinstance(name_or_model, nn.Module):
        model = name_or_model
        if processor is None:
            raise ValueError(
                f"processor must be given with a loaded model: the AutoProcessor that belongs to this "
                f"{type(model).__name__}"
            )
    else:
        raise TypeError(
            "name_or_model must be a name on the Hugging Face hub, a folder or a loaded model, got "
            f"{type(name_or_model).__name__}"
        )
    missing = [part for part in _TOWERS if not hasattr(model, part)]
    if missing:
        raise ValueError(
            f"name_or_model: {type(model).__name__} has no {' and no '.join(missing)}: it is not a model "
            "with an image and a text tower. from_classifier takes networks that classify, "
            "ZeroShotClassifier(...) any image encoder with class embeddings"
        )
    image_processor = getattr(processor, "image_processor", processor)
    if preprocess is None:
        preprocess = image_preprocess(image_processor)
    tower = ImageHalf(model, preprocess.size)
    text = TransformersText(private_copy(model, device=device, dtype=torch.float32), _tokenizer(processor))
    return TwoTowers(
        tower, text, text.tokenize, preprocess, _logit_scale(model), _number(model, "logit_bias", 0.0)
    )


def load_image_classifier(name: str) -> tuple[nn.Module, Any] | None:
    """A network, on the hub or in a folder, that classifies images, and its processor; None for others."""
    config = _load(name, "AutoConfig", None)
    if not any("ForImageClassification" in kind for kind in config.architectures or ()):
        return None
    return _load(name, "AutoModelForImageClassification", None), _load(name, "AutoImageProcessor", None)


def _load(name: str, kind: str, cache_dir: str | os.PathLike[str] | None) -> Any:
    """The model or the processor: of a folder, of the hub's cache, or else of the hub."""
    factory = getattr(_library(), kind)
    options: dict[str, Any] = {"cache_dir": None if cache_dir is None else os.fspath(cache_dir)}
    if not Path(name).expanduser().is_dir():
        if (found := _from_cache(factory, name, options)) is not None:
            return found
        check_hub_repository(name, cache_dir)
    else:
        name, options["local_files_only"] = str(Path(name).expanduser()), True
    try:
        return factory.from_pretrained(name, **options)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"the {kind} of {name} needs more packages: {_INSTALL} ({one_line(error)})"
        ) from error
    except Exception as error:
        raise ValueError(
            f"name_or_model: transformers cannot load {name!r} ({kind}): {one_line(error)}"
        ) from error


def _from_cache(factory: Any, name: str, options: Mapping[str, Any]) -> Any:
    """What is in the hub's cache; None if it is not there as a whole."""
    try:
        return factory.from_pretrained(name, **options, local_files_only=True)
    except ImportError as error:
        raise ModuleNotFoundError(f"{name} needs more packages: {_INSTALL} ({error})") from error
    except Exception:  # by version and by what is missing an OSError, a ValueError or others
        return None


def _library() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"models of transformers need the package {error.name}: {_INSTALL}", name=error.name
        ) from error
    return transformers


def _tokenizer(processor: Any) -> Any:
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None:
        raise ValueError(
            f"processor must have an image processor and a tokenizer, as AutoProcessor returns them, got "
            f"{type(processor).__name__}"
        )
    return tokenizer


def _logit_scale(model: Any) -> float:
    if isinstance(getattr(model, "logit_scale", None), Tensor):
        return float(model.logit_scale.detach().float().exp())
    if isinstance(getattr(model, "temperature", None), Tensor):  # ALIGN divides by it
        return 1 / _number(model, "temperature", 1.0)
    raise ValueError(f"logit_scale must be given: {type(model).__name__} has none of its own")


def _number(model: Any, name: str, default: float) -> float:
    value = getattr(model, name, None)
    return float(value.detach().float()) if isinstance(value, Tensor) and value.numel() == 1 else default


class TransformersText:
    """From texts to unit embeddings, with the model's own tokenizer and text tower.

    Also as a function of the tower's norm parameters.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        for part in ("vision_model", "visual_projection"):  # only the text tower is needed
            if hasattr(model, part):
                delattr(model, part)
        self._model, self._tokenizer = model, tokenizer
        self._device = next(model.parameters()).device
        self._length = _text_length(model.config, tokenizer)

    def tokens(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        """What the text tower takes.

        SigLIP was trained with texts padded to full length and needs them so; for the others padding makes
        no difference, but all texts of the same length are encoded alike in every batch.
        """
        padding = "max_length" if self._length <= _PADDED_UP_TO else True
        found: Mapping[str, Tensor] = self._tokenizer(
            list(texts), padding=padding, truncation=True, max_length=self._length, return_tensors="pt"
        )
        return found

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        return self.tokens(texts)["input_ids"]

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        return nn.functional.normalize(_features(self._model, self._inputs(texts)).float(), dim=-1)

    def affine_prompts(self, texts: Sequence[str], at_once: int) -> TowerPrompts:
        return TowerPrompts(self._model, self._inputs(texts), _features, at_once)

    def _inputs(self, texts: Sequence[str]) -> dict[str, Tensor]:
        return {name: value.to(self._device) for name, value in self.tokens(texts).items()}


def _features(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    return pooled(model.get_text_features(**inputs))


def _text_length(config: Any, tokenizer: Any) -> int:
    """How many tokens a text may have: as many as the tokenizer says and the tower has positions for."""
    text = getattr(config, "text_config", config)
    positions = int(getattr(text, "max_position_embeddings", 512))
    if "roberta" in str(getattr(text, "model_type", "")) or "altclip" in str(getattr(text, "model_type", "")):
        positions -= 2  # positions of RoBERTa start after that of the padding
    return min(positions, int(min(getattr(tokenizer, "model_max_length", positions), 10**9)))


# -- preprocessing ----------------------------------------------------------------------------------------


def image_preprocess(processor: Any) -> Preprocess:
    """The settings of an image processor of transformers; ValueError if ``Preprocess`` has no such steps."""
    resizes, crops = (getattr(processor, f"do_{step}", None) is True for step in ("resize", "center_crop"))
    unknown = [
        step for step in ("do_pad", "do_thumbnail", "do_reduce_labels") if getattr(processor, step, None)
    ]
    size, crop = _sides(getattr(processor, "size", None)), _sides(getattr(processor, "crop_size", None))
    edge, kept = size.get("shortest_edge"), crop if crops else size
    resample = getattr(processor, "resample", 2)
    squashes = edge is None and {"height", "width"} <= size.keys()
    fits = squashes and (not crops or crop == size)
    if unknown or not resizes or not (fits or (edge and crops)) or not {"height", "width"} <= kept.keys():
        raise ValueError(
            f"preprocess must be given: {type(processor).__name__} does steps that are not known here "
            f"(resize {resizes} to {size}, crop {crops} to {crop}{''.join(f', {step}' for step in unknown)})"
        )
    if int(resample) not in _FILTERS:
        raise ValueError(f"preprocess must be given: the filter {resample!r} of the processor is not known")
    mean, std = _statistics(processor)
    return Preprocess(
        (kept["height"], kept["width"]),
        mean,
        std,
        interpolation=_FILTERS[int(resample)],
        resize_mode="squash" if squashes else "shortest",
        resize_to=None if squashes else edge,
        crop="floor",
    )


def _sides(size: Any) -> dict[str, int]:
    """The sides that a size of transformers states, by name; crops of one number are square."""
    if size is None:
        return {}
    if isinstance(size, int):
        return {"height": size, "width": size}
    entries = dict(size) if isinstance(size, Mapping) else vars(size)
    return {str(name): int(value) for name, value in entries.items() if value is not None}


def _statistics(processor: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    factor = getattr(processor, "rescale_factor", 1 / 255)
    if getattr(processor, "do_rescale", True) is False or abs(factor * 255 - 1) > 1e-6:
        raise ValueError(
            f"preprocess must be given: {type(processor).__name__} scales pixels by {factor:g}, not by 1/255"
        )
    if getattr(processor, "do_normalize", True) is False:
        return (0.0,) * 3, (1.0,) * 3
    mean, std = processor.image_mean, processor.image_std
    both = [tuple(v) if isinstance(v, Sequence) else (float(v),) * 3 for v in (mean, std)]
    return both[0], both[1]
