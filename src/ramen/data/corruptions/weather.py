"""Snow, frost, fog and bright light."""

import numpy as np
from numpy.typing import NDArray

from ramen.data.corruptions import filters
from ramen.data.corruptions.filters import Images
from ramen.data.corruptions.frost import textures
from ramen.data.corruptions.pixels import Random, as_bytes, as_floats


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
