"""The strong augmentation of images in [0, 1] that RoTTA's and CoTTA's students are trained on, and ROID's.

Colours are changed in a random order; a rotation with shift and zoom, a slight blur, a flip and noise follow.
ROID's has neither blur nor noise. One draw is used for a whole batch, only the noise differs between its
images. The operations are those of
torchvision under the same names, for a batch on its own device, and never copy a number to or from it.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_COLOURS = ("brightness", "contrast", "saturation", "hue", "gamma")
_RANGES = {
    "brightness": (0.6, 1.4),
    "contrast": (0.7, 1.3),
    "saturation": (0.5, 1.5),
    "hue": (-0.06, 0.06),
    "gamma": (0.7, 1.3),
    "angle": (-15.0, 15.0),
    "scale": (0.9, 1.1),
    "sigma": (0.001, 0.5),
}
_LARGEST_SHIFT = 1 / 16  # of the image with its margins
_BLUR_REACH = 2  # pixels to each side
_NOISE = 0.005
_GREY = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class Draw:
    """The random choices for one batch."""

    order: tuple[str, ...]  # of the colour changes
    brightness: float
    contrast: float
    saturation: float
    hue: float  # as a fraction of a full turn
    gamma: float
    angle: float  # degrees
    scale: float
    sigma: float  # of the blur, in pixels
    shift: tuple[int, int]  # right and down, in pixels
    flip: bool
    noise_seed: int


def draw(size: tuple[int, int], generator: torch.Generator) -> Draw:
    """The random choices for images of this height and width, from a generator on the CPU."""
    order = torch.randperm(len(_COLOURS), generator=generator, device="cpu").tolist()
    uniform = torch.rand(len(_RANGES) + 3, generator=generator, dtype=torch.float64, device="cpu").tolist()
    seed = torch.randint(2**62, (), generator=generator, device="cpu").item()
    values = {
        name: low + u * (high - low)
        for u, (name, (low, high)) in zip(uniform[:-3], _RANGES.items(), strict=True)
    }
    # With a margin of half the image on each side, the sides are (almost) twice as long.
    width, height = (side + 2 * (side // 2) for side in (size[1], size[0]))
    shift = (
        round(_LARGEST_SHIFT * width * (2 * uniform[-3] - 1)),
        round(_LARGEST_SHIFT * height * (2 * uniform[-2] - 1)),
    )
    order_names = tuple(_COLOURS[index] for index in order)
    return Draw(order=order_names, shift=shift, flip=uniform[-1] < 0.5, noise_seed=int(seed), **values)


def augment(images: Tensor, drawn: Draw) -> Tensor:
    """Augment images ``(B, 3, H, W)`` in fp32 or fp64, which are first clipped to [0, 1]."""
    images = images.clamp(0, 1)
    for name in drawn.order:
        images = CHANGES[name](images, getattr(drawn, name))
    images = moved(images, drawn.angle, drawn.shift, drawn.scale, margin=_BLUR_REACH)
    images = blurred(images, drawn.sigma)
    if drawn.flip:
        images = images.flip(-1)
    noise = torch.Generator(device=images.device).manual_seed(drawn.noise_seed)
    return (images + _NOISE * _normal(images, noise)).clamp(0, 1)


def augment_without_noise(images: Tensor, drawn: Draw) -> Tensor:
    """ROID's form: no blur and no noise, and beyond its edges an image is mirrored; otherwise the same."""
    images = images.clamp(0, 1)
    for name in drawn.order:
        images = CHANGES[name](images, getattr(drawn, name))
    images = moved(images, drawn.angle, drawn.shift, drawn.scale, mirror=True)
    return images.flip(-1) if drawn.flip else images


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


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


def gamma(images: Tensor, exponent: float) -> Tensor:
    """Raise to a power."""
    return images.clamp(1e-8, 1) ** exponent


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


def moved(
    images: Tensor,
    angle: float,
    shift: tuple[int, int],
    scale: float,
    *,
    margin: int = 0,
    mirror: bool = False,
) -> Tensor:
    """Rotate, zoom about the centre, then shift; beyond its edges, an image repeats them.

    The result has ``margin`` more pixels on each side. The same as padding with repeated edges, moving with
    bilinear interpolation and cropping, without the large image in between. With ``mirror`` the image is
    mirrored at the centres of its outer pixels instead, as padding by reflection does.
    """
    height, width = images.shape[2:]
    x, y = (
        torch.arange(-margin, side + margin, dtype=images.dtype, device=images.device) - (side - 1) / 2 - by
        for side, by in zip((width, height), shift, strict=True)
    )
    y, x = y[:, None], x[None, :]
    cos, sin = math.cos(math.radians(angle)) / scale, math.sin(math.radians(angle)) / scale
    # Where each pixel of the result comes from; grid_sample counts from -1 to 1 between the outer edges, or
    # between the centres of the outer pixels, at which it then mirrors.
    spans = [max(side - mirror, 1) for side in (width, height)]
    grid = torch.stack([(cos * x + sin * y) * (2 / spans[0]), (cos * y - sin * x) * (2 / spans[1])], -1)
    grid = grid.expand(len(images), -1, -1, -1)
    padding = "reflection" if mirror else "border"
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=mirror)


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur over five pixels; the result has two pixels less on each side."""
    offsets = range(-_BLUR_REACH, _BLUR_REACH + 1)
    weights = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in offsets]
    total = sum(weights)
    for axis in (2, 3):
        length = images.shape[axis] - 2 * _BLUR_REACH
        summed = weights[0] / total * images.narrow(axis, 0, length)
        for i, weight in enumerate(weights[1:], 1):
            summed = summed.add(images.narrow(axis, i, length), alpha=weight / total)
        images = summed
    return images


CHANGES = {
    "brightness": brightness,
    "contrast": contrast,
    "saturation": saturation,
    "hue": hue,
    "gamma": gamma,
}
