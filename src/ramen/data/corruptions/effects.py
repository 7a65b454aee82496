"""The corruptions themselves: noise, blur, weather, and effects of digital processing.

Each takes images with values in [0, 1], the parameters of one severity, and random numbers.
"""

import io
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ramen.data.corruptions import filters
from ramen.data.corruptions.filters import Images, Random, as_bytes, as_floats
from ramen.data.corruptions.frost import textures


def gaussian_noise(x: Images, sigma: float, rng: Random) -> Images:
    """Add a normal number to every value."""
    return x + np.float32(sigma) * rng.standard_normal(x.shape, dtype=np.float32)


def shot_noise(x: Images, photons: float, rng: Random) -> Images:
    """Every value becomes a count of a few photons."""
    return (rng.poisson(x * photons) / photons).astype(np.float32)


def impulse_noise(x: Images, amount: float, rng: Random) -> Images:
    """Some values become black or white."""
    hit, salt = rng.random(x.shape) <= amount, rng.random(x.shape) < 0.5
    return np.where(hit, salt, x).astype(np.float32)


def speckle_noise(x: Images, sigma: float, rng: Random) -> Images:
    """Add to every value a normal number in proportion to it."""
    return x + x * (np.float32(sigma) * rng.standard_normal(x.shape, dtype=np.float32))


@lru_cache
def disk(radius: float, alias_sigma: float) -> NDArray[np.float64]:
    """A disk, softened by a small Gaussian.

    Up to radius 8 the grid is 17 x 17 and the Gaussian has 3 x 3 taps; for larger disks the grid is just
    large enough and the Gaussian has 5 x 5 taps. The grid is mirrored at its edge, so a disk that touches the
    edge sums to a little more than 1.
    """
    reach, half = (8, 1) if radius <= 8 else (int(radius), 2)
    steps, taps = np.arange(-reach, reach + 1), np.arange(-half, half + 1)
    hard = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(float)
    weights = np.exp(-0.5 * taps**2 / alias_sigma**2)
    weights /= weights.sum()
    soft = np.zeros((len(steps), len(steps)))
    for tap, weight in zip(taps, weights, strict=True):
        np.add.at(soft, (np.arange(len(steps)), filters.mirrored(steps + reach + tap, len(steps))), weight)
    return np.asarray(soft @ hard @ soft.T / hard.sum())


def defocus_blur(x: Images, radius_and_alias: tuple[float, float], rng: Random) -> Images:
    """Every pixel spreads into a disk."""
    return filters.convolve(x, disk(*radius_and_alias))


def glass_blur(x: Images, parameters: tuple[float, int, int], rng: Random) -> Images:
    """Pixels take the values of random neighbours, between two blurs."""
    sigma, reach, rounds = parameters
    panes = as_bytes(filters.gaussian(x, sigma, 4, filters.nearest))
    count, height, width = panes.shape[:3]
    number = np.arange(count)
    for _ in range(rounds):
        # The order matters: a pixel may be read after it has been overwritten.
        down, right = rng.integers(-reach, reach, (2, count, height, width))
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                source = (number, row + down[:, row, column], column + right[:, row, column])
                panes[:, row, column] = panes[source]
    return filters.gaussian(as_floats(panes), sigma, 4, filters.nearest)


def motion_blur(x: Images, parameters: tuple[int, float], rng: Random) -> Images:
    """Every pixel spreads along a line of random direction."""
    radius, sigma = parameters
    return filters.motion(x, radius, sigma, angles=rng.uniform(-45, 45, (len(x),)))


def zoom_blur(x: Images, limit_and_step: tuple[float, float], rng: Random) -> Images:
    """The mean of increasing enlargements of the center."""
    factors = np.arange(1, *limit_and_step)
    height, width = x.shape[1:3]
    zoomed = x.copy()
    for factor in factors:
        zoomed += filters.apply(filters.zoom_matrix(height, factor), filters.zoom_matrix(width, factor), x)
    return zoomed / np.float32(len(factors) + 1)


def gaussian_blur(x: Images, sigma: float, rng: Random) -> Images:
    """Every pixel spreads into a Gaussian."""
    return filters.gaussian(x, sigma, 4, filters.nearest)


def snow(x: Images, parameters: tuple[float, float, float, float, int, float, float], rng: Random) -> Images:
    """Flakes that fall to the left and to the right in front of a paler image."""
    mean, deviation, zoom, threshold, radius, sigma, mix = parameters
    count, height, width = x.shape[:3]
    flakes = rng.normal(mean, deviation, (count, height, width, 1)).astype(np.float32)
    flakes = filters.apply(filters.zoom_matrix(height, zoom), filters.zoom_matrix(width, zoom), flakes)
    flakes = as_floats(as_bytes(np.where(flakes < threshold, 0, flakes)))
    flakes = filters.motion(flakes, radius, sigma, angles=rng.uniform(-135, -45, (count,)))
    grey = (x @ np.array([0.299, 0.587, 0.114], dtype=np.float32))[..., None]
    x = mix * x + (1 - mix) * np.maximum(x, 1.5 * grey + 0.5)
    return x + flakes + flakes[:, ::-1, ::-1]


def frost(x: Images, parameters: tuple[float, float, int], rng: Random) -> Images:
    """A frosted window: a random crop of a random texture, of which every ``stride``-th pixel is used."""
    weight, frost_weight, stride = parameters
    count, height, width = x.shape[:3]
    frosted = [image[stride // 2 :: stride, stride // 2 :: stride] for image in textures().images]
    layer = np.empty_like(x)
    for number, which in enumerate(rng.integers(len(frosted), size=(count,))):
        texture = frosted[which]
        top = rng.integers(max(1, texture.shape[0] - height))
        left = rng.integers(max(1, texture.shape[1] - width))
        # A texture that is too small is continued by mirroring it.
        rows = filters.symmetric(np.arange(top, top + height), texture.shape[0])
        columns = filters.symmetric(np.arange(left, left + width), texture.shape[1])
        layer[number] = as_floats(texture[rows[:, None], columns])
    return np.asarray(weight * x + frost_weight * layer, np.float32)


def _plasma(count: int, size: int, decay: float, rng: Random) -> Images:
    """Clouds in [0, 1] by the diamond-square algorithm, periodic; ``size`` is a power of two."""
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


def fog(x: Images, parameters: tuple[float, float], rng: Random) -> Images:
    """Clouds in front of the image."""
    weight, decay = parameters
    count, height, width = x.shape[:3]
    size = 1 << (max(height, width) - 1).bit_length()
    brightest: Images = x.max((1, 2, 3), keepdims=True)
    clouds = _plasma(count, size, decay, rng)[:, :height, :width, None]
    return (x + weight * clouds) * brightest / (brightest + weight)


def brightness(x: Images, amount: float, rng: Random) -> Images:
    """Add to the value in HSV; hue and saturation stay, so the channels grow in proportion."""
    value: Images = x.max(-1, keepdims=True)
    brighter: Images = np.clip(value + amount, 0, 1)
    return np.where(value > 0, x * (brighter / np.maximum(value, 1e-12)), brighter).astype(np.float32)


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
