"""The common corruptions of small images, with the parameters of CIFAR-10-C and CIFAR-100-C.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019. Frost is missing: it needs photographs of frost.
"""

import io
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ramen import checks
from ramen.data import filters
from ramen.data.filters import Images

Random = np.random.Generator


def _gaussian_noise(x: Images, sigma: float, rng: Random) -> Images:
    return x + np.float32(sigma) * rng.standard_normal(x.shape, dtype=np.float32)


def _shot_noise(x: Images, photons: float, rng: Random) -> Images:
    return (rng.poisson(x * photons) / photons).astype(np.float32)


def _impulse_noise(x: Images, amount: float, rng: Random) -> Images:
    hit, salt = rng.random(x.shape) <= amount, rng.random(x.shape) < 0.5
    return np.where(hit, salt, x).astype(np.float32)


@lru_cache
def _disk(radius: float, alias_sigma: float) -> NDArray[np.float64]:
    """A disk on a grid of 17 x 17, softened by a Gaussian of 3 x 3."""
    steps = np.arange(-8, 9)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(float)
    side = np.exp(-0.5 / alias_sigma**2)
    soft = np.array([side, 1, side]) / (1 + 2 * side)
    disk = sum(w * np.roll(disk, s, 0) for w, s in zip(soft, (-1, 0, 1), strict=True))
    disk = sum(w * np.roll(disk, s, 1) for w, s in zip(soft, (-1, 0, 1), strict=True))
    return np.asarray(disk / disk.sum())


def _defocus_blur(x: Images, radius_and_alias: tuple[float, float], rng: Random) -> Images:
    return filters.convolve(x, _disk(*radius_and_alias))


def _glass_blur(x: Images, parameters: tuple[float, int, int], rng: Random) -> Images:
    """Every pixel takes its neighbour's value now and then, between two blurs."""
    sigma, reach, rounds = parameters
    panes = _as_bytes(filters.gaussian(x, sigma, 4, filters.nearest))
    count, height, width = panes.shape[:3]
    number = np.arange(count)
    for _ in range(rounds):
        # The order matters: a pixel may be read after it has been overwritten.
        down, right = rng.integers(-reach, reach, (2, count, height, width))
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                source = (number, row + down[:, row, column], column + right[:, row, column])
                panes[:, row, column] = panes[source]
    return filters.gaussian(_as_floats(panes), sigma, 4, filters.nearest)


def _motion_blur(x: Images, parameters: tuple[int, float], rng: Random) -> Images:
    radius, sigma = parameters
    return filters.motion(x, radius, sigma, angles=rng.uniform(-45, 45, (len(x),)))


def _zoom_blur(x: Images, limit: float, rng: Random) -> Images:
    factors = np.arange(1, limit, 0.01)
    height, width = x.shape[1:3]
    zoomed = x.copy()
    for factor in factors:
        zoomed += filters.apply(filters.zoom_matrix(height, factor), filters.zoom_matrix(width, factor), x)
    return zoomed / np.float32(len(factors) + 1)


def _snow(x: Images, parameters: tuple[float, float, float, float, int, float, float], rng: Random) -> Images:
    mean, deviation, zoom, threshold, radius, sigma, mix = parameters
    count, height, width = x.shape[:3]
    flakes = rng.normal(mean, deviation, (count, height, width, 1)).astype(np.float32)
    flakes = filters.apply(filters.zoom_matrix(height, zoom), filters.zoom_matrix(width, zoom), flakes)
    flakes = _as_floats(_as_bytes(np.where(flakes < threshold, 0, flakes)))
    flakes = filters.motion(flakes, radius, sigma, angles=rng.uniform(-135, -45, (count,)))
    grey = (x @ np.array([0.299, 0.587, 0.114], dtype=np.float32))[..., None]
    x = mix * x + (1 - mix) * np.maximum(x, 1.5 * grey + 0.5)
    return x + flakes + flakes[:, ::-1, ::-1]


def _plasma(count: int, size: int, decay: float, rng: Random) -> Images:
    """Cloud maps in [0, 1] by the diamond-square rule, wrapped around; ``size`` is a power of two."""
    clouds = np.zeros((count, size, size))
    step, wibble = size, 100.0

    def mean(total: NDArray[np.float64]) -> NDArray[np.float64]:
        return total / 4 + wibble * rng.uniform(-wibble, wibble, total.shape)

    while step >= 2:
        half = step // 2
        corners = clouds[:, ::step, ::step]
        square = corners + np.roll(corners, -1, 1)
        clouds[:, half::step, half::step] = mean(square + np.roll(square, -1, 2))
        centres = clouds[:, half::step, half::step]
        above = centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)
        clouds[:, ::step, half::step] = mean(above)
        beside = centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)
        clouds[:, half::step, ::step] = mean(beside)
        step, wibble = half, wibble / decay
    clouds -= clouds.min((1, 2), keepdims=True)
    clouds /= clouds.max((1, 2), keepdims=True)
    return clouds.astype(np.float32)


def _fog(x: Images, parameters: tuple[float, float], rng: Random) -> Images:
    weight, decay = parameters
    count, height, width = x.shape[:3]
    size = 1 << (max(height, width) - 1).bit_length()
    brightest: Images = x.max((1, 2, 3), keepdims=True)
    clouds = _plasma(count, size, decay, rng)[:, :height, :width, None]
    return (x + weight * clouds) * brightest / (brightest + weight)


def _brightness(x: Images, amount: float, rng: Random) -> Images:
    """Add to the value of HSV: hue and saturation stay, so the channels grow in proportion."""
    value: Images = x.max(-1, keepdims=True)
    brighter: Images = np.clip(value + amount, 0, 1)
    return np.where(value > 0, x * (brighter / np.maximum(value, 1e-12)), brighter).astype(np.float32)


def _contrast(x: Images, factor: float, rng: Random) -> Images:
    mean: Images = x.mean((1, 2), keepdims=True)
    return (x - mean) * factor + mean


def _elastic_transform(x: Images, parameters: tuple[float, float, float], rng: Random) -> Images:
    """Move three points and the plane with them, then every pixel a little on its own."""
    count, height, width = x.shape[:3]
    alpha, sigma, jitter = (height * p for p in parameters)
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


def _pixelate(x: Images, factor: float, rng: Random) -> Images:
    height, width = x.shape[1:3]
    small = (int(width * factor), int(height * factor))

    def coarse(image: Image.Image) -> Image.Image:
        return image.resize(small, Image.Resampling.BOX).resize((width, height), Image.Resampling.BOX)

    return _one_by_one(x, coarse)


def _jpeg_compression(x: Images, quality: int, rng: Random) -> Images:
    def compressed(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _one_by_one(x, compressed)


def _one_by_one(x: Images, change: Callable[[Image.Image], Image.Image]) -> Images:
    return _as_floats(np.stack([np.asarray(change(Image.fromarray(image))) for image in _as_bytes(x)]))


def _as_floats(pixels: NDArray[np.uint8]) -> Images:
    return pixels.astype(np.float32) / np.float32(255)


def _as_bytes(x: Images) -> NDArray[np.uint8]:
    """Truncated, not rounded, as the released files are; the small amount undoes division by 255."""
    return np.asarray(np.clip(x, 0, 1) * 255 + 1e-3).astype(np.uint8)


# Each with its parameters at severity 1 to 5, in the order of every table.
CORRUPTIONS: dict[str, tuple[Callable[[Images, Any, Random], Images], tuple[Any, ...]]] = {
    "gaussian_noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (_shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": (_glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
    "motion_blur": (_motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (_zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": (
        _snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "fog": (_fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (
        _elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (_jpeg_compression, (80, 65, 58, 50, 40)),
}


def corrupt(images: NDArray[np.uint8], name: str, rng: Random, severity: int = 5) -> NDArray[np.uint8]:
    """A batch ``(N, H, W, 3)`` of bytes under a corruption; ``rng`` decides everything random."""
    checks.choice("name", name, tuple(CORRUPTIONS))
    checks.integer("severity", severity, 1, 5)
    if (
        not isinstance(images, np.ndarray)
        or images.dtype != np.uint8
        or images.ndim != 4
        or images.shape[-1] != 3
    ):
        came = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise ValueError(f"images must be a uint8 array of shape (N, H, W, 3), got {came}")
    function, parameters = CORRUPTIONS[name]
    return _as_bytes(function(_as_floats(images), parameters[severity - 1], rng))
