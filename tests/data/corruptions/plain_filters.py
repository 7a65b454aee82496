"""Plain transcriptions of the filters, one pixel at a time, and sample images to compare them on."""

import math

import numpy as np
from PIL import Image

from ramen.data.corruptions import RECIPES


def sample_images(count=3, size=32, seed=0):
    """Smooth coloured images with edges, some pixels black, some white and some grey."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    images = [np.asarray(Image.fromarray(s).resize((size, size), Image.Resampling.BICUBIC)) for s in small]
    images = np.stack(images).copy()
    images[:, 4:9, 20:27] = 0
    images[:, 15:18, 3:30] = 255
    images[:, 25:28, 3:12] = 97  # grey: it has no hue
    return images


def as_bytes(x):
    return (np.clip(x, 0, 1) * 255 + 1e-3).astype(np.uint8)


def assert_close(ours, plain, tolerance=1, share=0.02):
    """Equal up to the last bit of a byte, which depends on rounding."""
    difference = np.abs(ours.astype(int) - plain.astype(int))
    assert difference.max() <= tolerance
    assert (difference > 0).mean() < share


def parameters(name, severity, recipe="cifar"):
    return RECIPES[recipe].parameters[name][severity - 1]


def reflect101(i, n):
    while not 0 <= i < n:
        i = -i if i < 0 else 2 * n - 2 - i
    return i


def reflect(i, n):
    while not 0 <= i < n:
        i = -1 - i if i < 0 else 2 * n - 1 - i
    return i


def clamp(i, n):
    return min(max(i, 0), n - 1)


def plain_gaussian(image, sigma, truncate=4, edge=clamp):
    radius = int(truncate * sigma + 0.5)
    weights = [math.exp(-0.5 * (s / sigma) ** 2) for s in range(-radius, radius + 1)]
    weights = [w / sum(weights) for w in weights]
    for axis in (0, 1):
        moved = np.zeros(image.shape)
        n = image.shape[axis]
        for i in range(n):
            for step, weight in zip(range(-radius, radius + 1), weights, strict=True):
                source = np.take(image, edge(i + step, n), axis=axis)
                if axis == 0:
                    moved[i] += weight * source
                else:
                    moved[:, i] += weight * source
        image = moved
    return image


def plain_zoom(image, factor):
    """The center of an image, enlarged with linear interpolation, cut to the old size."""
    n = len(image)
    part = math.ceil(n / factor)
    top = (n - part) // 2
    middle = image[top : top + part, top : top + part]
    big = round(part * factor)
    zoomed = np.zeros((big, big, image.shape[2]))
    for y in range(big):
        for x in range(big):
            v, u = y * (part - 1) / (big - 1), x * (part - 1) / (big - 1)
            v0, u0 = min(int(v), part - 1), min(int(u), part - 1)
            v1, u1 = min(v0 + 1, part - 1), min(u0 + 1, part - 1)
            a, b = v - v0, u - u0
            zoomed[y, x] = (1 - a) * ((1 - b) * middle[v0, u0] + b * middle[v0, u1]) + a * (
                (1 - b) * middle[v1, u0] + b * middle[v1, u1]
            )
    trim = (big - n) // 2
    return zoomed[trim : trim + n, trim : trim + n]


def plain_motion(image, radius, sigma, angle):
    weights = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(2 * radius + 1)]
    n, blurred = len(image), np.zeros_like(image)
    for i, weight in enumerate(weights):
        right = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        down = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        for y in range(n):
            for x in range(n):
                blurred[y, x] += weight / sum(weights) * image[clamp(y + down, n), clamp(x + right, n)]
    return blurred


def plain_sample(image, rows, columns, edge):
    n, sampled = len(image), np.zeros_like(image)
    for y in range(n):
        for x in range(n):
            v, u = rows[y, x], columns[y, x]
            v0, u0 = math.floor(v), math.floor(u)
            a, b = v - v0, u - u0
            corner = [image[edge(v0 + i, n), edge(u0 + j, n)] for i in (0, 1) for j in (0, 1)]
            sampled[y, x] = (1 - a) * ((1 - b) * corner[0] + b * corner[1]) + a * (
                (1 - b) * corner[2] + b * corner[3]
            )
    return sampled
