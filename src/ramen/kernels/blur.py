"""A slight blur of images, with what follows it in an augmentation: a flip, noise and clipping.

In plain torch each of these is several passes over the memory; the program needs one.
"""

import math

import torch
from torch import Tensor

from ramen import kernels

REACH = 2  # pixels to each side
_BLOCK = 512  # with more, the 25 pixels around each do not fit into registers


def blurred_with_noise(
    images: Tensor, sigma: float, noise: Tensor, strength: float, *, flip: bool = False
) -> Tensor:
    """Blur, flip if asked to, add noise and clip to [0, 1].

    Args:
        images: ``(B, 3, H, W)``, with ``REACH`` more pixels on each side than the result.
        sigma: Of the Gaussian, in pixels.
        noise: In the shape of the result; added after the flip.
        strength: Noise is multiplied with it.
        flip: Whether left and right are exchanged.
    """
    if _uses_triton(images):
        return _blurred_with_noise_triton(images, sigma, noise, strength, flip)
    return _blurred_with_noise_torch(images, sigma, noise, strength, flip)


def _uses_triton(images: Tensor) -> bool:
    return kernels.usable_on(images.device) and images.dtype == torch.float32


def _weights(sigma: float) -> list[float]:
    """Of five pixels in a row; their sum is 1."""
    weights = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(-REACH, REACH + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


# -- plain torch ------------------------------------------------------------------------------------


def _blurred_with_noise_torch(
    images: Tensor, sigma: float, noise: Tensor, strength: float, flip: bool
) -> Tensor:
    images = blurred(images, sigma)
    if flip:
        images = images.flip(-1)
    return (images + strength * noise).clamp(0, 1)


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur over five pixels; the result has two pixels less on each side."""
    weights = _weights(sigma)
    for axis in (2, 3):
        length = images.shape[axis] - 2 * REACH
        summed = weights[0] * images.narrow(axis, 0, length)
        for i, weight in enumerate(weights[1:], 1):
            summed = summed.add(images.narrow(axis, i, length), alpha=weight)
        images = summed
    return images


# -- Triton -----------------------------------------------------------------------------------------


def _blurred_with_noise_triton(
    images: Tensor, sigma: float, noise: Tensor, strength: float, flip: bool
) -> Tensor:
    images, noise = images.contiguous(), noise.contiguous()
    output = torch.empty_like(noise)
    batch, channels, height, width = noise.shape
    far, near, middle = _weights(sigma)[: REACH + 1]
    grid = (batch * channels, -(-height * width // _BLOCK))
    with kernels.current_device(images.device):
        kernels.load("blur").blur_with_noise[grid](
            images,
            noise,
            output,
            height,
            width,
            far,
            near,
            middle,
            strength,
            FLIP=flip,
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return output
