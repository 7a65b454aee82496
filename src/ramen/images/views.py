"""Random views of images: each a part of the image, scaled to its full size, and half of them mirrored.

The parts are drawn as torchvision's ``RandomResizedCrop`` draws them. What is drawn for an image depends on a
seed and on its own pixels, neither on its batch nor on its place in the stream. Nothing is copied to or from
the images' device.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.utils.numerics import pair_scores, row_keys

SMALLEST_CROP = 0.08  # of the image's area
_SHAPES = 3 / 4, 4 / 3  # width over height
_TRIES = 10  # crops that do not fit into the image are drawn again; in all
_DRAWS = 2 * _TRIES + 3  # numbers for a view: area and shape for each try, place across and down, mirrored


def random_views(images: Tensor, number: int, smallest_crop: float = SMALLEST_CROP, seed: int = 0) -> Tensor:
    """Views ``(B, number, 3, H, W)`` of images ``(B, 3, H, W)`` in fp32 or fp64; the first is the image.

    Args:
        images: Any pixels: to normalise before or after makes no difference.
        number: How many views of each image.
        smallest_crop: The least share of an image's area that a view shows.
        seed: Decides what is drawn, together with an image's pixels.
    """
    return views_at(images, *draw_places(images, number, smallest_crop, seed))


def draw_places(
    images: Tensor, number: int, smallest_crop: float = SMALLEST_CROP, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Where the pixels of random views come from, for ``views_at``; the arguments are ``random_views``'.

    These are many small operations, which cost the same for one image and for many.

    Returns:
        Across ``(B, number - 1, W)`` and down ``(B, number - 1, H)``, for all views but the first.
    """
    places = torch.arange((number - 1) * _DRAWS, device=images.device)
    keys = row_keys(images.float())  # the same pixels in another precision have the same views
    uniform = pair_scores(seed, keys, places).view(len(images), number - 1, _DRAWS)
    boxes, mirrored = draw_crops(uniform, (images.shape[2], images.shape[3]), smallest_crop)
    return crop_places(images, boxes, mirrored)


def views_at(images: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """The images ``(B, 3, H, W)`` and their views from the given places: ``(B, 1 + views, 3, H, W)``.

    By bilinear interpolation: parts are never larger than the image, so that no pixel is left out and nothing
    needs to be smoothed.
    """
    batch, views = across.shape[:2]
    if not views:
        return images[:, None]
    x, y = across.flatten(0, 1)[:, None, :], down.flatten(0, 1)[:, :, None]
    parts = F.grid_sample(
        images[:, None].expand(-1, views, -1, -1, -1).flatten(0, 1),  # no copy, if it is one image
        torch.stack(torch.broadcast_tensors(x, y), -1),
        mode="bilinear",
        padding_mode="border",
        align_corners=False,
    )
    return torch.cat([images[:, None], parts.view(batch, views, *images.shape[1:])], 1)


def draw_crops(uniform: Tensor, size: tuple[int, int], smallest_crop: float) -> tuple[Tensor, Tensor]:
    """The crops that uniform numbers ``(..., 23)`` in [0, 1) stand for.

    Args:
        uniform: fp64.
        size: Height and width of the image.
        smallest_crop: The least share of its area.

    Returns:
        Top, left, height and width in pixels, ``(..., 4)`` in fp64, and whether the view is mirrored.
    """
    height, width = size
    areas = (smallest_crop + (1 - smallest_crop) * uniform[..., :_TRIES]) * (height * width)
    low, high = (math.log(shape) for shape in _SHAPES)
    shapes = torch.exp(low + (high - low) * uniform[..., _TRIES : 2 * _TRIES])
    widths, heights = (areas * shapes).sqrt().round(), (areas / shapes).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)

    # The first that fits; if none does, as large a part of the middle as has an allowed shape.
    first = fits.to(torch.uint8).argmax(-1, keepdim=True)
    instead_height, instead_width = _central_crop(height, width)
    fits = fits.any(-1, keepdim=True)
    heights = torch.where(fits, heights.gather(-1, first), instead_height)
    widths = torch.where(fits, widths.gather(-1, first), instead_width)
    left, top, mirrored = uniform[..., 2 * _TRIES :].split(1, -1)
    left = torch.where(fits, (left * (width - widths + 1)).floor(), (width - instead_width) // 2)
    top = torch.where(fits, (top * (height - heights + 1)).floor(), (height - instead_height) // 2)
    return torch.cat([top, left, heights, widths], -1), mirrored.squeeze(-1) < 0.5


def _central_crop(height: int, width: int) -> tuple[int, int]:
    """Height and width of what is taken if no crop fits: the whole image, unless it is long or tall."""
    shape, (low, high) = width / height, _SHAPES
    return (round(width / low) if shape < low else height), (round(height * high) if shape > high else width)


def crop_places(images: Tensor, boxes: Tensor, mirrored: Tensor) -> tuple[Tensor, Tensor]:
    """Where ``grid_sample`` has to look across ``(B, views, W)`` and down ``(B, views, H)``."""
    height, width = images.shape[2:]
    top, left, heights, widths = boxes[..., None].unbind(2)
    rows = _places(height, top, heights)
    columns = _places(width, left, widths)
    columns = torch.where(mirrored[..., None], columns.flip(2), columns)
    # It counts from -1 to 1 between the outer edges.
    across, down = (2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1
    return across.to(images.dtype), down.to(images.dtype)


def _places(length: int, start: Tensor, extent: Tensor) -> Tensor:
    """Where each of ``length`` pixels comes from, ``(..., length)``: never from beyond the part's edges."""
    centres = torch.arange(length, dtype=start.dtype, device=start.device) + 0.5
    within = (centres * (extent / length) - 0.5).clamp_min(0)
    return start + torch.minimum(within, extent - 1)


def shuffle_patches(images: Tensor, orders: Tensor, tiles: int) -> Tensor:
    """Images ``(B, 3, H, W)`` cut into ``tiles`` x ``tiles`` patches that change places.

    If the size is no multiple of ``tiles``, the image is resized to the next smaller one and back.

    Args:
        images: Floats.
        orders: A permutation per image, ``(B, tiles * tiles)``: which patch comes to each place.
        tiles: Patches along each side.

    >>> image = torch.arange(4.0).view(1, 1, 2, 2)
    >>> shuffle_patches(image, torch.tensor([[3, 1, 0, 2]]), 2)
    tensor([[[[3., 1.],
              [0., 2.]]]])
    """
    batch, channels, *size = images.shape
    if min(size) < tiles:
        raise ValueError(f"tiles must be at most {min(size)}, the smaller side of an image, got {tiles}")
    height, width = (side // tiles for side in size)
    cut = _resized(images, (height * tiles, width * tiles))
    patches = cut.reshape(batch, channels, tiles, height, tiles, width).permute(0, 2, 4, 1, 3, 5)
    patches = patches.reshape(batch, tiles * tiles, channels, height, width)
    moved = patches.gather(1, orders[:, :, None, None, None].expand_as(patches))
    moved = moved.view(batch, tiles, tiles, channels, height, width).permute(0, 3, 1, 4, 2, 5)
    return _resized(moved.reshape(batch, channels, height * tiles, width * tiles), (size[0], size[1]))


def shuffle_pixels(images: Tensor, order: Tensor) -> Tensor:
    """Images ``(B, 3, H, W)`` whose pixels all change places, in the same way: ``order`` has H * W places."""
    return images.flatten(2)[:, :, order].view_as(images)


def occlude_centre(images: Tensor) -> Tensor:
    """Images ``(B, 3, H, W)`` whose middle, half as high and half as wide, has their mean colour."""
    rows, columns = (_middle(side, images.device) for side in images.shape[2:])
    return torch.where(rows[:, None] & columns, images.mean((2, 3), keepdim=True), images)


def _middle(side: int, device: torch.device) -> Tensor:
    """Which places along a side belong to the half that begins after a quarter."""
    places = torch.arange(side, device=device) - side // 4
    return (places >= 0) & (places < side // 2)


def _resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(images.shape[2:]) == size:
        return images
    wide = images.to(torch.promote_types(images.dtype, torch.float32))
    return F.interpolate(wide, size, mode="bilinear", antialias=True).to(images.dtype)
