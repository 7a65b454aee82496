"""Transforms that destroy the shape of what an image shows and keep most of its colours and textures.

A model that goes by shapes is less sure of such an image; one that goes by the background is as sure as
before.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


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
