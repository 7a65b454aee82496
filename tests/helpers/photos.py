"""Small images with the structure of photographs, decided by a number, and files of them."""

import io

import numpy as np
from PIL import Image


def photo(seed: int, size: tuple[int, int] = (40, 50)) -> Image.Image:
    """An image of that height and width: noise at a coarse scale."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size[1], size[0]))


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    """The image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()
