"""RoTTA's and ROID's augmentations as their authors compose them, in torchvision's operations."""

import colorsys

import torch
import torchvision.transforms.functional as TF
from torch import Tensor
from torchvision.transforms import InterpolationMode

from ramen.images.augment import Draw


def adjust_hue(images: Tensor, turn: float) -> Tensor:
    """Pixel by pixel with Python's own conversion: torchvision's computes in fp32, whatever it is given."""
    pixels = []
    for r, g, b in images.movedim(1, -1).reshape(-1, 3).tolist():
        h, s, v = colorsys.rgb_to_hsv(r, g, b)
        pixels.append(colorsys.hsv_to_rgb((h + turn) % 1.0, s, v))
    rows = torch.tensor(pixels, dtype=images.dtype)
    return rows.view(len(images), *images.shape[2:], 3).movedim(-1, 1)


COLOURS = {
    "brightness": TF.adjust_brightness,
    "contrast": TF.adjust_contrast,
    "saturation": TF.adjust_saturation,
    "hue": adjust_hue,
    "gamma": lambda images, exponent: TF.adjust_gamma(images.clamp(1e-8, 1.0), exponent),
}


def augment_with_torchvision(images: Tensor, drawn: Draw) -> Tensor:
    """Clip, colours, pad by edges, affine, blur, centre crop, flip, noise, clip."""
    height, width = images.shape[2:]
    out = images.clip(0, 1)
    for name in drawn.order:
        out = COLOURS[name](out, getattr(drawn, name))
    out = TF.pad(out, [width // 2, height // 2], padding_mode="edge")
    out = TF.affine(
        out,
        angle=drawn.angle,
        translate=list(drawn.shift),
        scale=drawn.scale,
        shear=[0.0, 0.0],
        interpolation=InterpolationMode.BILINEAR,
    )
    out = TF.gaussian_blur(out, [5, 5], [drawn.sigma, drawn.sigma])
    out = TF.center_crop(out, [height, width])
    if drawn.flip:
        out = TF.hflip(out)
    generator = torch.Generator(device=out.device).manual_seed(drawn.noise_seed)
    noise = torch.randn(out.shape, generator=generator, dtype=out.dtype, device=out.device)
    return (out + 0.005 * noise).clip(0, 1)


def augment_without_noise_with_torchvision(images: Tensor, drawn: Draw) -> Tensor:
    """Clip, colours, pad by reflection, affine, centre crop, flip."""
    height, width = images.shape[2:]
    out = images.clip(0, 1)
    for name in drawn.order:
        out = COLOURS[name](out, getattr(drawn, name))
    out = TF.pad(out, [width // 2, height // 2], padding_mode="reflect")
    bilinear = InterpolationMode.BILINEAR
    out = TF.affine(out, drawn.angle, list(drawn.shift), drawn.scale, [0.0, 0.0], interpolation=bilinear)
    out = TF.center_crop(out, [height, width])
    return TF.hflip(out) if drawn.flip else out
