"""The strong augmentation of images in [0, 1] that RoTTA's and CoTTA's students are trained on, and ROID's.

Colours are changed in a random order; a rotation with shift and zoom, a slight blur, a flip and noise follow.
ROID's has neither blur nor noise. One draw is used for a whole batch, only the noise differs between its
images. Colours but for hue and blur are torchvision's; no number is copied to or from the device.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import torchvision.transforms.functional as TF
from torch import Tensor


def hue(images: Tensor, turn: float) -> Tensor:
    """Rotate the colour circle by a fraction of a full turn; torchvision's rounds fp64 to fp32."""
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


_COLOURS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "brightness": TF.adjust_brightness,
    "contrast": TF.adjust_contrast,
    "saturation": TF.adjust_saturation,
    "hue": hue,
    "gamma": lambda images, exponent: TF.adjust_gamma(images.clamp_min(1e-8), exponent),
}
_REACH = 2  # of the blur, pixels to each side
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
_NOISE = 0.005


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
    order_names = tuple(list(_COLOURS)[index] for index in order)
    return Draw(order=order_names, shift=shift, flip=uniform[-1] < 0.5, noise_seed=int(seed), **values)


def augment(images: Tensor, drawn: Draw) -> Tensor:
    """Augment images ``(B, 3, H, W)`` in fp32 or fp64, which are first clipped to [0, 1]."""
    noise = _normal(images, torch.Generator(device=images.device).manual_seed(drawn.noise_seed))
    images = moved(_recoloured(images, drawn), drawn.angle, drawn.shift, drawn.scale, margin=_REACH)
    images = TF.gaussian_blur(images, [2 * _REACH + 1] * 2, [drawn.sigma] * 2)
    images = images[:, :, _REACH:-_REACH, _REACH:-_REACH]
    images = images.flip(-1) if drawn.flip else images
    return (images + _NOISE * noise).clamp(0, 1)


def augment_without_noise(images: Tensor, drawn: Draw) -> Tensor:
    """ROID's form: no blur and no noise, and beyond its edges an image is mirrored; otherwise the same."""
    images = moved(_recoloured(images, drawn), drawn.angle, drawn.shift, drawn.scale, mirror=True)
    return images.flip(-1) if drawn.flip else images


def _recoloured(images: Tensor, drawn: Draw) -> Tensor:
    images = images.clamp(0, 1)
    for name in drawn.order:
        images = _COLOURS[name](images, getattr(drawn, name))
    return images


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


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
