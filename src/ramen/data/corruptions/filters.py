"""Linear filters and resampling of whole batches of images, as matrix products and gathers.

Images are float arrays ``(N, H, W, channels)``; their values are bytes divided by 255.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float32]
Random = np.random.Generator
Indices = NDArray[np.intp]
Places = NDArray[np.floating | np.integer]

_MANY_TAPS = 64  # for a kernel with more taps, a Fourier transform is faster


def as_floats(pixels: NDArray[np.uint8]) -> Images:
    """Bytes as numbers in [0, 1]."""
    return pixels.astype(np.float32) / np.float32(255)


def as_bytes(x: Images) -> NDArray[np.uint8]:
    """Numbers in [0, 1] as bytes, truncated as in the released files.

    The small addend makes up for the rounding error of the division by 255.
    """
    return np.asarray(np.clip(x, 0, 1) * 255 + 1e-3).astype(np.uint8)


def nearest(indices: Indices, length: int) -> Indices:
    """Beyond the edge: repeat the pixel at the edge."""
    return np.clip(indices, 0, length - 1)


def symmetric(indices: Indices, length: int) -> Indices:
    """Beyond the edge: mirror, with the pixel at the edge twice."""
    indices = np.mod(indices, 2 * length)
    return np.where(indices < length, indices, 2 * length - 1 - indices)


def mirrored(indices: Indices, length: int) -> Indices:
    """Beyond the edge: mirror, with the pixel at the edge once."""
    if length == 1:
        return np.zeros_like(indices)
    indices = np.mod(indices, 2 * length - 2)
    return np.where(indices < length, indices, 2 * length - 2 - indices)


Edge = Callable[[Indices, int], Indices]


@lru_cache
def _gaussian_matrix(length: int, sigma: float, truncate: float, edge: Edge) -> NDArray[np.float32]:
    """The 1-d Gaussian filter of ``length`` pixels as a matrix."""
    radius = int(truncate * sigma + 0.5)
    steps = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    matrix = np.zeros((length, length))
    rows = np.arange(length)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        np.add.at(matrix, (rows, edge(rows + step, length)), weight)
    return matrix.astype(np.float32)


def apply(rows: NDArray[np.float32], columns: NDArray[np.float32], images: Images) -> Images:
    """``rows @ image @ columns.T`` for each image and channel."""
    count, height, width, channels = images.shape
    tall = rows @ images.reshape(count, height, width * channels)
    result: Images = columns @ tall.reshape(count * len(rows), width, channels)
    return result.reshape(count, len(rows), len(columns), channels)


def gaussian(images: Images, sigma: float, truncate: float, edge: Edge) -> Images:
    """Gaussian blur of the two image axes."""
    height, width = images.shape[1:3]
    return apply(
        _gaussian_matrix(height, sigma, truncate, edge),
        _gaussian_matrix(width, sigma, truncate, edge),
        images,
    )


@lru_cache
def zoom_matrix(length: int, factor: float) -> NDArray[np.float32]:
    """The matrix that enlarges the center by ``factor``, with linear interpolation, at the old length."""
    part = int(np.ceil(length / factor))
    start = (length - part) // 2
    zoomed = round(part * factor)
    trim = (zoomed - length) // 2
    places = start + (np.arange(length) + trim) * ((part - 1) / (zoomed - 1) if zoomed > 1 else 0)
    return linear_matrix(places, length)


def linear_matrix(places: NDArray[np.floating], length: int) -> NDArray[np.float32]:
    """The matrix that reads a row of pixels at ``places``, with linear interpolation."""
    low = np.clip(np.floor(places).astype(int), 0, length - 1)
    high, rest = np.minimum(low + 1, length - 1), places - low
    matrix = np.zeros((len(places), length))
    np.add.at(matrix, (np.arange(len(places)), low), 1 - rest)
    np.add.at(matrix, (np.arange(len(places)), high), rest)
    return matrix.astype(np.float32)


def convolve(images: Images, kernel: NDArray[np.floating], edge: Edge = mirrored) -> Images:
    """Correlate every channel with an odd square kernel; in a small one, only the non-zero taps cost time."""
    reach = len(kernel) // 2
    height, width = images.shape[1:3]
    rows, columns = (
        edge(np.arange(-reach, height + reach), height),
        edge(np.arange(-reach, width + reach), width),
    )
    padded = images[:, rows[:, None], columns]
    result = np.zeros_like(images)
    if np.count_nonzero(kernel) > _MANY_TAPS:
        turned = np.conj(np.fft.rfft2(kernel, padded.shape[1:3]))[..., None]
        for number, image in enumerate(padded.astype(np.float64)):  # singly: the transform is large
            product = np.fft.rfft2(image, axes=(0, 1)) * turned
            result[number] = np.fft.irfft2(product, image.shape[:2], axes=(0, 1))[:height, :width]
        return result
    for y, x in np.argwhere(kernel):
        result += np.float32(kernel[y, x]) * padded[:, y : y + height, x : x + width]
    return result


def motion(images: Images, radius: int, sigma: float, angles: NDArray[np.floating]) -> Images:
    """Blur along a line from the pixel, one angle per image: a one-sided Gaussian in whole pixels."""
    height, width = images.shape[1:3]
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / sigma) ** 2)
    number = np.arange(len(images))[:, None, None]
    result = np.zeros_like(images)
    for step, weight in enumerate(weights / weights.sum()):
        down = np.ceil(step * np.sin(np.radians(angles)) - 0.5).astype(int)[:, None, None]
        right = np.ceil(step * np.cos(np.radians(angles)) - 0.5).astype(int)[:, None, None]
        rows = nearest(np.arange(height)[None, :, None] + down, height)
        columns = nearest(np.arange(width)[None, None, :] + right, width)
        result += np.float32(weight) * images[number, rows, columns]
    return result


def sample(images: Images, rows: Places, columns: Places, edge: Edge) -> Images:
    """Read each image at fractional places ``(N, H, W)``, with linear interpolation."""
    height, width = images.shape[1:3]
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, right = (rows - top).astype(np.float32)[..., None], (columns - left).astype(np.float32)[..., None]
    number = np.arange(len(images))[:, None, None]

    def at(row: Indices, column: Indices) -> Images:
        return images[number, edge(row, height), edge(column, width)]

    upper = at(top, left) * (1 - right) + at(top, left + 1) * right
    lower = at(top + 1, left) * (1 - right) + at(top + 1, left + 1) * right
    result: Images = upper * (1 - down) + lower * down
    return result
