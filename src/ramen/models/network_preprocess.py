"""The preprocessing of networks of timm, torchvision and transformers, as a ``Preprocess``."""

import math
from typing import Any

from ramen.images.preprocess import Preprocess


def as_preprocess(given: Any) -> Preprocess:
    """``given`` as a ``Preprocess``.

    Args:
        given: A ``Preprocess``, the transforms of torchvision's weights (``weights.transforms()``), or an
            image processor of transformers.
    """
    if isinstance(given, Preprocess):
        return given
    if type(given).__module__.startswith("torchvision.") and hasattr(given, "resize_size"):
        return _of_torchvision(given)
    if hasattr(given, "image_mean") and hasattr(given, "do_resize"):
        from ramen.models.transformers import image_preprocess

        return image_preprocess(given)
    raise TypeError(
        "preprocess must be a ramen.Preprocess, the transforms() of torchvision's weights or an image "
        f"processor of transformers, got {type(given).__name__}"
    )


def known_preprocess(model: Any) -> Preprocess | None:
    """What timm says of a network of its own; None for others."""
    config = getattr(model, "pretrained_cfg", None)
    return _of_timm(model) if isinstance(config, dict) and "input_size" in config else None


def _of_torchvision(given: Any) -> Preprocess:
    (size,), (resize_to,) = given.crop_size, given.resize_size
    filters = {"bilinear": "bilinear", "bicubic": "bicubic", "nearest": "nearest", "lanczos": "lanczos"}
    return Preprocess(
        size,
        tuple(given.mean),
        tuple(given.std),
        interpolation=filters[str(given.interpolation.value)],
        resize_to=resize_to,
    )


def _of_timm(model: Any) -> Preprocess:
    from timm.data.config import resolve_model_data_config

    config = resolve_model_data_config(model)
    _, height, width = config["input_size"]
    mode, share = config["crop_mode"], config["crop_pct"]
    if mode == "squash" and share == 1:
        return _timm_preprocess(config, (height, width), resize_mode="squash")
    if mode != "center" or height != width:
        raise ValueError(
            f"preprocess must be given: timm crops images of this model by {mode!r} at {share:g}, to "
            f"{height} x {width}"
        )
    return _timm_preprocess(config, (height, width), resize_to=math.floor(height / share))


def _timm_preprocess(config: dict[str, Any], size: tuple[int, int], **options: Any) -> Preprocess:
    return Preprocess(
        size, tuple(config["mean"]), tuple(config["std"]), interpolation=config["interpolation"], **options
    )
