"""Effects of digital processing: contrast, saturation, distortion, coarse pixels, compression."""

import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from ramen.data.corruptions import filters
from ramen.data.corruptions.filters import Images
from ramen.data.corruptions.pixels import Random, as_bytes, as_floats


def contrast(x: Images, factor: float, rng: Random) -> Images:
    """Move every value closer to the mean of its channel."""
    mean: Images = x.mean((1, 2), keepdims=True)
    return (x - mean) * factor + mean


def saturate(x: Images, factor_and_offset: tuple[float, float], rng: Random) -> Images:
    """Change the saturation in HSV; hue and value stay."""
    factor, offset = factor_and_offset
    value: Images = x.max(-1, keepdims=True)
    spread: Images = value - x.min(-1, keepdims=True)
    saturation = np.clip(spread / np.maximum(value, 1e-12) * factor + offset, 0, 1)
    # How far each channel is below the largest, from 0 to 1; grey has the hue 0, which is red.
    below = np.where(spread > 0, (value - x) / np.maximum(spread, 1e-12), np.array([0, 1, 1], np.float32))
    return np.asarray(value * (1 - saturation * below), np.float32)


def elastic_transform(x: Images, parameters: tuple[float, float, float], rng: Random) -> Images:
    """Warp the image by moving three points, then shift every pixel a little; all lengths are in pixels."""
    count, height, width = x.shape[:3]
    alpha, sigma, jitter = parameters
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")

    middle, reach = np.array([height // 2, width // 2]), min(height, width) // 3
    before = middle + reach * np.array([[1, 1], [1, -1], [-1, -1]])  # as (x, y)
    after = before + rng.uniform(-jitter, jitter, (count, 3, 2))
    homogeneous = np.concatenate([after, np.ones((count, 3, 1))], axis=2)
    back = np.linalg.solve(homogeneous, np.broadcast_to(before.astype(float), (count, 3, 2)))  # (N, 3, 2)
    plane = np.stack([columns, rows, np.ones_like(rows)], axis=2) @ back[:, None]
    x = filters.sample(x, plane[..., 1], plane[..., 0], filters.mirrored)

    if alpha == 0:
        return x
    shifts = rng.uniform(-1, 1, (count, height, width, 2)).astype(np.float32)
    shifts = alpha * filters.gaussian(shifts, sigma, 3, filters.symmetric)
    return filters.sample(x, rows + shifts[..., 0], columns + shifts[..., 1], filters.symmetric)


def pixelate(x: Images, factor: float, rng: Random) -> Images:
    """Shrink the image and enlarge it again, with box filters."""
    height, width = x.shape[1:3]
    small = (int(width * factor), int(height * factor))

    def coarse(image: Image.Image) -> Image.Image:
        return image.resize(small, Image.Resampling.BOX).resize((width, height), Image.Resampling.BOX)

    return _per_image(x, coarse)


def jpeg_compression(x: Images, quality: int, rng: Random) -> Images:
    """Encode as JPEG and decode again."""

    def compressed(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _per_image(x, compressed)


def _per_image(x: Images, change: Callable[[Image.Image], Image.Image]) -> Images:
    return as_floats(np.stack([np.asarray(change(Image.fromarray(image))) for image in as_bytes(x)]))
