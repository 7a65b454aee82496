"""Your own images in one ``.npz`` file: one array per domain, and labels that apply to all of them.

``labels`` holds the classes ``(n,)``. Every other array is a domain ``(n, H, W, 3)`` of uint8, all with the
same images in the same order. ``clean`` is left out unless it is requested by name. ``classes`` may hold the
class names.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen.data.dataset import Domain, Labels
from ramen.data.formats import class_names
from ramen.data.formats.reading import Reading, choose_domains, first_few
from ramen.data.formats.stored_images import LoadedImages

LABELS, CLASSES, CLEAN = "labels", "classes", "clean"
KNOWN_CLASSES = {"cifar10": class_names.CIFAR10, "cifar100": class_names.CIFAR100}

_REMEDY = "write it with numpy.savez: labels (n,), and one array (n, H, W, 3) of uint8 per domain"


def read_arrays(
    root: Path, domains: Sequence[str] | None = None, classes: str | Sequence[str] | None = None
) -> Reading:
    """Read an ``.npz`` file; ``classes`` are names, the name of a known list, or None to use the file's."""
    reading = Reading("arrays", root)
    if not reading.has_file(root, _REMEDY):
        return reading
    try:
        file = np.load(root, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reading.add("error", root, f"cannot be read: {error}", _REMEDY)
        return reading
    with file:
        _read(reading, file, domains, classes)
    reading.identity["sha256"] = hashlib.sha256(root.read_bytes()).hexdigest()
    return reading


def _read(
    reading: Reading,
    file: Mapping[str, NDArray[Any]],
    domains: Sequence[str] | None,
    classes: str | Sequence[str] | None,
) -> None:
    found = [name for name in file if name not in (LABELS, CLASSES)]
    labels = _read_labels(reading, file)
    if labels is None:
        return
    reading.classes = _read_class_names(reading, file, classes, int(labels.max()) + 1)
    chosen = choose_domains(domains, [name for name in found if name != CLEAN], found)
    if not chosen:
        reading.add("error", reading.root, "has no array of a domain", _REMEDY)
    for name in chosen:
        pixels = _read_array(reading, file, name)
        if pixels is None:
            continue
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            what = f"array {name!r} must be uint8 (n, H, W, 3), got {pixels.dtype} {pixels.shape}"
            reading.add("error", reading.root, what, _REMEDY)
        elif len(pixels) != len(labels):
            what = f"array {name!r} has {len(pixels):,} images for {len(labels):,} labels"
            reading.add("error", reading.root, what, _REMEDY)
        else:
            reading.domains.append(Domain(name, labels, LoadedImages(pixels)))


def _read_array(reading: Reading, file: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any] | None:
    try:
        return file[name]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reading.add("error", reading.root, f"array {name!r} cannot be read: {error}", _REMEDY)
        return None


def _read_labels(reading: Reading, file: Mapping[str, NDArray[Any]]) -> Labels | None:
    if LABELS not in file:
        reading.add("error", reading.root, f"has no array {LABELS!r}; it has {first_few(file)}", _REMEDY)
        return None
    labels = _read_array(reading, file, LABELS)
    if labels is None:
        return None
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or not len(labels) or labels.min() < 0:
        what = f"array {LABELS!r} must be whole numbers (n,), at least 0, got {labels.dtype} {labels.shape}"
        reading.add("error", reading.root, what, _REMEDY)
        return None
    return labels.astype(np.int64)


def _read_class_names(
    reading: Reading, file: Mapping[str, NDArray[Any]], given: str | Sequence[str] | None, needed: int
) -> tuple[str, ...]:
    source = "given"
    if given is None and CLASSES in file:
        array = _read_array(reading, file, CLASSES)
        if array is None:
            return ()
        given, source = [str(name) for name in array.ravel()], "file"
    if given is None:
        known = ", ".join(KNOWN_CLASSES)
        raise ValueError(
            f"{reading.root} does not name its {needed} classes: give the option classes (the names in the "
            f"order of the labels, or one of {known}), or put an array {CLASSES!r} of names into the file"
        )
    if isinstance(given, str):
        source = given if given in KNOWN_CLASSES else source
        given = KNOWN_CLASSES.get(given) or [name.strip() for name in given.split(",") if name.strip()]
    reading.identity["class_names"] = source
    if len(given) < needed:
        raise ValueError(
            f"classes: the labels go up to {needed - 1}, but only {len(given)} classes are named: "
            f"{first_few(given)}"
        )
    return tuple(given)
