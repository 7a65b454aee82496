"""Facts about a module that is about to be wrapped, and checks of what comes with it."""

import torch
from torch import Tensor, nn


def check_fused(value: object) -> bool | str:
    """``value``, if it is a choice between fused, compiled and plain passes."""
    if value is True or value is False or (isinstance(value, str) and value in ("auto", "compile")):
        return value
    raise ValueError(f"fused must be True, False, 'auto' or 'compile', got {value!r}")


def weight_dtype(module: nn.Module) -> torch.dtype:
    """The type that most weights have: half-precision models keep their norm layers in fp32."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in module.parameters():
        if parameter.is_floating_point():
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


def tolerance(dtypes: set[torch.dtype], device: torch.device) -> float:
    """How far two ways to compute the same features may be apart, relative to their size."""
    if dtypes & {torch.float16, torch.bfloat16}:
        return 0.05
    # torch lets convolutions on a GPU round their factors to the ten bits of TF32
    return 5e-3 if device.type == "cuda" else 1e-3


def stated_size(module: nn.Module) -> tuple[int, int] | None:
    """The image size that open_clip's towers state, if the module does."""
    size = getattr(module, "image_size", None)
    if isinstance(size, int):
        return size, size
    if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(s, int) for s in size):
        return size[0], size[1]
    return None


def example_shape(example: object, stated: tuple[int, int] | None) -> tuple[int, ...] | None:
    """The shape of one image: that of the ``example`` batch, or of the size that a module states."""
    if example is None:
        return None if stated is None else (3, *stated)
    if not isinstance(example, Tensor) or example.ndim != 4:
        came = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
        raise ValueError(f"example must be a batch of images (B, 3, H, W), got {came}")
    return tuple(example.shape[1:])
