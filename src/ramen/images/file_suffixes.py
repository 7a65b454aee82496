"""Which file names are those of images."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")


def has_image_suffix(name: str) -> bool:
    """Whether a file of that name counts as an image, in upper or lower case.

    >>> has_image_suffix("cat.JPEG"), has_image_suffix("cat.txt"), has_image_suffix(".jpg")
    (True, False, False)
    """
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and (dot + suffix).lower() in IMAGE_SUFFIXES
