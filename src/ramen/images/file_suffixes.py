"""Which file names are those of images."""

from collections.abc import Iterable

# Of data sets. GIF is not among them, as in the loaders that published results were measured with.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")

# Of photographs: by the formats that ``ramen.images.decoding`` reads.
SUFFIXES_BY_FORMAT = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
}


def has_image_suffix(name: str) -> bool:
    """Whether a file of that name counts as an image, in upper or lower case.

    >>> has_image_suffix("cat.JPEG"), has_image_suffix("cat.txt"), has_image_suffix(".jpg")
    (True, False, False)
    """
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and (dot + suffix).lower() in IMAGE_SUFFIXES


def has_suffix_of(name: str, formats: Iterable[str]) -> bool:
    """Whether a file of that name should be in one of these formats, in upper or lower case.

    >>> has_suffix_of("cat.GIF", ["GIF"]), has_suffix_of("cat.gif", ["PNG"]), has_suffix_of(".gif", ["GIF"])
    (True, False, False)
    """
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and any((dot + suffix).lower() in SUFFIXES_BY_FORMAT[known] for known in formats)
