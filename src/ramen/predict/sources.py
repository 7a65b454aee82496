"""What callers hand over as images, taken apart into one source after another.

Nothing is opened here but folders, and nothing is asked for before it is needed, so that a source may be an
endless generator. Whatever is no image becomes a source with a reason in place of a value: it keeps its place
in the stream, and its turn is when somebody reads it.
"""

import glob
import numbers
import os
import stat
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ramen.images.file_checks import SUFFIXES_BY_FORMAT, has_suffix_of

SUFFIXES = ", ".join(suffix for suffixes in SUFFIXES_BY_FORMAT.values() for suffix in suffixes)
_WILDCARDS = frozenset("*?[")


class Source(NamedTuple):
    """One image to decode."""

    key: str  # the path of a file, the caller's own key, or "image 17"
    value: Any  # a path as a string, bytes, file object, PIL image, array, tensor; ``NoImage``


@dataclass(frozen=True)
class NoImage:
    """In place of an image: why there is none, with the key."""

    error: str


@dataclass(frozen=True)
class _Nothing:
    """In place of an image whose key is not known yet."""

    reason: str


_Found = tuple[str | None, Any]  # a key, if the image has one of its own, and the value


def expand(sources: object) -> Generator[Source, None, None]:
    """Every image that ``sources`` stands for, one at a time, in order.

    - A string or ``os.PathLike`` is a file, or a folder with everything below it: the files that are named
      like images, sorted, without hidden ones. Its key is its path.
    - A string with ``*``, ``?`` or ``[`` that names no file is a pattern, as in ``glob`` with ``**`` for any
      depth. All files that match count, in sorted order; folders that match count with what is in them,
      unless the pattern has ``**`` and thus finds that itself.
    - ``bytes``, binary file objects, PIL images, arrays and uint8 tensors ``(3, H, W)`` are images. A uint8
      array or tensor of four dimensions is one image after another. The key is "image N", with the place N in
      the stream.
    - A tuple of two whose first is a string or a whole number is a key with its source, also if the second is
      a path: write two paths as a list. So are the items of a mapping. If that source is a folder, the key
      comes in place of the folder's path; if it is another source of many images, they get "KEY 0", "KEY 1"
      and so on.
    - Any other iterable is its items, each of any of these kinds. An exception that it raises is passed on.

    What is none of these, a path that does not exist, a pattern without a match and a folder without images
    come as a source whose value is a ``NoImage``.

    >>> [source.key for source in expand([b"...", ("door", b"..."), "no such file.jpg"])]
    ['image 0', 'door', 'no such file.jpg']
    """
    for place, (own_key, value) in enumerate(_images(sources, None)):
        key = f"image {place}" if own_key is None else own_key
        yield Source(key, NoImage(f"{key}: {value.reason}") if isinstance(value, _Nothing) else value)


def _images(value: Any, key: str | None) -> Iterator[_Found]:
    if isinstance(value, str | os.PathLike):
        yield from _at_path(value, key)
    elif _is_pair(value):
        yield from _images(value[1], str(value[0]) if key is None else f"{key}/{value[0]}")
    elif _is_image(value):
        yield key, value
    elif isinstance(value, Mapping):
        yield from _images(value.items(), key)
    elif isinstance(value, Iterable):
        for index, item in enumerate(value):
            yield from _images(item, _numbered(key, index))
    else:
        yield key, _Nothing(f"{type(value).__name__} is no source of images")


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], str | numbers.Integral)
        and not isinstance(value[0], bool)
    )


def _is_image(value: object) -> bool:
    """Whether ``value`` is given as one image; whether it really is one shows when it is decoded."""
    if isinstance(value, Tensor):
        return not (value.ndim == 4 and value.dtype == torch.uint8)
    if isinstance(value, np.ndarray):
        holds_sources = value.dtype.kind in "OU" and value.ndim > 0  # paths, or objects of any kind
        return not (holds_sources or (value.ndim == 4 and value.dtype == np.uint8))
    return isinstance(value, bytes | bytearray | memoryview | Image.Image | NoImage) or hasattr(value, "read")


def _numbered(key: str | None, index: int) -> str | None:
    return None if key is None else f"{key} {index}"


# -- paths ----------------------------------------------------------------------------------------------


def _at_path(path: str | os.PathLike[Any], key: str | None) -> Iterator[_Found]:
    name = os.fsdecode(path)
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError) as error:  # a ValueError for a name with a zero byte
        if isinstance(path, str) and not _WILDCARDS.isdisjoint(name):
            yield from _matches(name, key)
        else:
            yield key or name, _Nothing(_reason(error))
        return
    yield from _at_existing_path(name, key, mode)


def _at_existing_path(name: str, key: str | None, mode: int) -> Iterator[_Found]:
    if stat.S_ISDIR(mode):
        found = False
        for image in _in_folder(name, key or name, ()):
            found = True
            yield image
        if not found:
            yield key or name, _Nothing(f"the folder has no images, which are named {SUFFIXES}")
    elif stat.S_ISREG(mode):
        yield key or name, name
    else:
        yield key or name, _Nothing("not a regular file")


def _matches(pattern: str, key: str | None) -> Iterator[_Found]:
    try:
        names = sorted(glob.glob(pattern, recursive=True))
    except ValueError as error:
        names, reason = [], _reason(error)
    else:
        reason = "no file matches the pattern"
    if "**" in pattern:
        names = [name for name in names if not os.path.isdir(name)]
    if not names:
        yield key or pattern, _Nothing(reason)
    for index, name in enumerate(names):
        try:
            mode = os.stat(name).st_mode
        except OSError as error:
            yield _numbered(key, index) or name, _Nothing(_reason(error))
        else:
            yield from _at_existing_path(name, _numbered(key, index), mode)


def _in_folder(folder: str, label: str, above: tuple[tuple[int, int], ...]) -> Iterator[_Found]:
    """The images of a folder.

    Args:
        folder: Its path.
        label: What comes in place of the path in keys.
        above: Which folders it is in, so that links cannot lead around in a circle.
    """
    try:
        status = os.stat(folder)
        with os.scandir(folder) as entries:
            visible = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    except OSError as error:
        yield label, _Nothing(_reason(error))
        return
    identity = status.st_dev, status.st_ino
    if identity in above:
        return
    for entry in visible:
        key = os.path.join(label, entry.name)
        try:
            is_folder, is_file = entry.is_dir(), entry.is_file()
        except OSError:  # a link that leads to itself
            is_folder = is_file = False
        if is_folder:
            yield from _in_folder(entry.path, key, (*above, identity))
        elif has_suffix_of(entry.name, SUFFIXES_BY_FORMAT):
            yield key, entry.path if is_file else _Nothing("not a regular file")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    return getattr(error, "strerror", None) or str(error)
