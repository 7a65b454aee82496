"""The image tower of what is given as an encoder but is more than that: a two-tower or a compiled model."""

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ramen.encoder.norms import private_copy
from ramen.encoder.probe import pooled


class ImageHalf(nn.Module):
    """The image half of a model of transformers with two towers, as a function of images alone.

    It shares the model's weights, without gradients, and contains only the parts that image features come
    from. Images have the configuration's size if none is given.
    """

    def __init__(self, model: Any, image_size: tuple[int, int] | None = None) -> None:
        super().__init__()
        parameters = inspect.signature(model.get_image_features).parameters
        if "pixel_values" not in parameters or "spatial_shapes" in parameters:
            raise ValueError(
                f"{type(model).__name__} does not take images of one size (NaFlex, for one, takes patches of "
                "images of any size): use a checkpoint of fixed resolution"
            )
        self.image_size = _configured_size(model) if image_size is None else image_size
        self.model: Any = private_copy(model)
        self._keep_used_parts()

    def forward(self, images: Tensor) -> Tensor:
        return pooled(self.model.get_image_features(pixel_values=images))

    @torch.no_grad()
    def _keep_used_parts(self) -> None:
        """Remove the text tower, and whatever else does not take part."""
        used: set[str] = set()
        parts = dict(self.model.named_children())
        hooks = [
            part.register_forward_pre_hook(lambda *_, name=name: used.add(name))
            for name, part in parts.items()
        ]
        weight = next(p for p in self.model.parameters() if p.is_floating_point())
        try:
            self.forward(torch.zeros(1, 3, *self.image_size, dtype=weight.dtype, device=weight.device))
        finally:
            for hook in hooks:
                hook.remove()
        for name in parts.keys() - used:
            delattr(self.model, name)
        for name in list(self.model._parameters):  # logit scale and bias
            delattr(self.model, name)


def image_tower(module: nn.Module) -> nn.Module:
    """What of ``module`` encodes images: the module itself, if it is no more than an image encoder."""
    if (original := _compiled_from(module)) is not None:
        warnings.warn(
            "the encoder was compiled by torch.compile: its original module is used, as norm parameters "
            "that are arguments would make torch compile it anew again and again",
            stacklevel=4,
        )
        module = original
    compiled = [name for name, part in module.named_modules() if _compiled_from(part) is not None]
    if compiled:
        raise ValueError(
            f"module must not contain parts that were compiled by torch.compile, got {', '.join(compiled)}: "
            "wrap the module before compiling it"
        )
    if hasattr(module, "get_image_features") and hasattr(module, "get_text_features"):
        return ImageHalf(module)
    visual = getattr(module, "visual", None)
    if hasattr(module, "encode_image") and isinstance(visual, nn.Module):
        return visual  # of open_clip
    return module


def _compiled_from(module: nn.Module) -> nn.Module | None:
    """The original of a compiled module; looking at the class would import torch's compiler."""
    return module._modules.get("_orig_mod")


def _configured_size(model: Any) -> tuple[int, int]:
    vision = getattr(getattr(model, "config", None), "vision_config", None)
    size = getattr(vision, "image_size", None)
    if isinstance(size, int):
        return size, size
    if isinstance(size, list | tuple) and len(size) == 2:
        return int(size[0]), int(size[1])
    raise ValueError(f"the configuration of {type(model).__name__} states no image size, got {size!r}")
