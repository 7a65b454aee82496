"""How the names of image files end."""

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")


def names_an_image(name: str) -> bool:
    """Whether a file of that name is taken for an image, in capitals too.

    >>> names_an_image("cat.JPEG"), names_an_image("cat.txt"), names_an_image(".jpg")
    (True, False, False)
    """
    stem, dot, ending = name.rpartition(".")
    return bool(stem) and (dot + ending).lower() in IMAGE_ENDINGS
