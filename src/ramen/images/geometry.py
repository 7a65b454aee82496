"""Where resized images go: the size that fits, and what of it is in the centre."""

from PIL import Image, ImageOps

RESIZE_MODES = ("shortest", "longest", "squash")
CROPS = ("nearest", "floor")


def fitted_size(size: tuple[int, int], target: tuple[int, int], resize_mode: str) -> tuple[int, int]:
    """Width and height to resize to, given the image's width and height and the target's height and width."""
    width, height = size
    target_height, target_width = target
    if resize_mode == "squash":
        return target_width, target_height
    if resize_mode == "shortest" and target_height == target_width:
        long_side = int(target_height * max(size) / min(size))
        return (target_width, long_side) if width <= height else (long_side, target_height)
    ratios = (height / target_height, width / target_width)
    ratio = max(ratios) if resize_mode == "longest" else min(ratios)
    return round(width / ratio), round(height / ratio)


def centre(image: Image.Image, size: tuple[int, int], fill: int, crop: str = "nearest") -> Image.Image:
    """The centre of ``image``, padded if it is smaller than the height and width ``size``."""
    height, width = size
    above, below, top = centring(image.height, height, crop)
    before, after, left = centring(image.width, width, crop)
    if above or below or before or after:
        bands = len(image.getbands())
        colour = fill if bands == 1 else (fill,) * bands
        image = ImageOps.expand(image, (before, above, after, below), colour)
    return image.crop((left, top, left + width, top + height))


def centring(length: int, target: int, crop: str = "nearest") -> tuple[int, int, int]:
    """Along one axis: pixels to add before and after, and then where the ``target`` central pixels start.

    If an odd number of pixels is to be cut off, ``crop`` says where: ``"nearest"`` rounds half a pixel to an
    even number, as torchvision does, ``"floor"`` rounds it down, as transformers does.
    """
    missing = max(0, target - length)
    left_over = length + missing - target
    start = left_over // 2 if crop == "floor" else round(left_over / 2)
    return missing // 2, (missing + 1) // 2, start
