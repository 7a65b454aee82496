"""Changes of the colours of images in [0, 1], one after the other, in any order.

The changes are those of torchvision under the same names. In plain torch each is several passes over the
memory; the programs need one, and another that only reads: contrast blends with an image's mean grey, as it
is after the changes before.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ramen import kernels

_GREY = (0.2989, 0.587, 0.114)
_BLOCK = 1024


def changed(images: Tensor, changes: Sequence[tuple[str, float]]) -> Tensor:
    """Images ``(B, 3, H, W)`` in fp32 or fp64, clipped to [0, 1], after these changes.

    Args:
        images: On any device.
        changes: Names in ``CHANGES`` with their factors, each name at most once.
    """
    return _changed_triton(images, changes) if _uses_triton(images) else _changed_torch(images, changes)


def _uses_triton(images: Tensor) -> bool:
    return kernels.usable_on(images.device) and images.dtype == torch.float32


# -- plain torch ------------------------------------------------------------------------------------


def _changed_torch(images: Tensor, changes: Sequence[tuple[str, float]]) -> Tensor:
    images = images.clamp(0, 1)
    for name, factor in changes:
        images = CHANGES[name](images, factor)
    return images


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (_GREY[0] * red + _GREY[1] * green + _GREY[2] * blue)[:, None]


def brightness(images: Tensor, factor: float) -> Tensor:
    """Blend with black: 0 is black, 1 the image."""
    return (factor * images).clamp(0, 1)


def contrast(images: Tensor, factor: float) -> Tensor:
    """Blend with the mean grey of each image."""
    return (factor * images + (1 - factor) * _grey(images).mean((1, 2, 3), keepdim=True)).clamp(0, 1)


def saturation(images: Tensor, factor: float) -> Tensor:
    """Blend with the grey image."""
    return (factor * images + (1 - factor) * _grey(images)).clamp(0, 1)


def hue(images: Tensor, turn: float) -> Tensor:
    """Rotate the colour circle by a fraction of a full turn."""
    red, green, blue = images.unbind(1)
    value, chroma = images.amax(1), images.amax(1) - images.amin(1)
    safe = torch.where(chroma == 0, 1, chroma)  # grey has no hue; any value will do
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sector = sector + 6 * turn
    # A channel falls from `value` by the chroma, along a ramp, while the hue is far from its own.
    channels = []
    for offset in (5, 3, 1):
        place = (sector + offset) % 6
        ramp = torch.minimum(place, 4 - place).clamp(0, 1)
        channels.append(value - chroma * ramp)
    return torch.stack(channels, 1)


def gamma(images: Tensor, exponent: float) -> Tensor:
    """Raise to a power."""
    return images.clamp(1e-8, 1) ** exponent


CHANGES = {
    "brightness": brightness,
    "contrast": contrast,
    "saturation": saturation,
    "hue": hue,
    "gamma": gamma,
}


# -- Triton -----------------------------------------------------------------------------------------


def _changed_triton(images: Tensor, changes: Sequence[tuple[str, float]]) -> Tensor:
    images = images.contiguous()
    batch, pixels = len(images), images.shape[2] * images.shape[3]
    names, factors = [name for name, _ in changes], dict(changes)
    # The order is one number, so that a program is compiled once for all orders.
    order = sum(list(CHANGES).index(name) << 3 * place for place, name in enumerate(names))
    values = [factors.get(name, 0.0) for name in CHANGES]
    before = names.index("contrast") if "contrast" in names else 0
    blocks = -(-pixels // _BLOCK)
    # Added up without atomic operations: the same images have the same sums, always.
    sums = torch.empty((batch, blocks), dtype=torch.float32, device=images.device)
    output = torch.empty_like(images)
    programs, grid, options = kernels.load("colours"), (batch, blocks), {"BLOCK": _BLOCK, "num_warps": 4}
    with kernels.current_device(images.device):
        programs.grey_sums[grid](images, sums, pixels, order, before, *values, **options)
        programs.change_colours[grid](
            images,
            sums,
            output,
            pixels,
            blocks,
            order,
            len(names),
            *values,
            BLOCKS=kernels.power_of_two(blocks),
            **options,
        )
    return output
