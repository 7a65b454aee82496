"""CIFAR-10-C and CIFAR-100-C in the layout of their release: one array file per corruption.

``<corruption>.npy`` holds the test images at severity 1, then at severity 2, and so on; ``labels.npy`` holds
their classes, row by row. Files with fewer images are read in the same way. A set that has only some
severities stores each in a folder ``severity_<number>`` with files of its own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramen.data import archives
from ramen.data.archives import Archive
from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from ramen.data.dataset import Domain, Labels
from ramen.data.formats import class_names
from ramen.data.formats.reading import Reading, choose_domains, find_root
from ramen.data.formats.stored_images import ArrayFileImages, open_array
from ramen.utils import checks

RELEASED_ROWS = 50_000
SIDE = 32
LABELS = "labels.npy"


def read_cifar10c(root: Path, severity: int = 5, domains: Sequence[str] | None = None) -> Reading:
    """CIFAR-10-C; ``domains`` are corruptions."""
    return _read("cifar10c", root, class_names.CIFAR10, archives.CIFAR10C, severity, domains)


def read_cifar100c(root: Path, severity: int = 5, domains: Sequence[str] | None = None) -> Reading:
    """CIFAR-100-C; ``domains`` are corruptions."""
    return _read("cifar100c", root, class_names.CIFAR100, archives.CIFAR100C, severity, domains)


def _read(
    name: str,
    root: Path,
    classes: tuple[str, ...],
    archive: Archive,
    severity: int,
    domains: Sequence[str] | None,
) -> Reading:
    checks.integer("severity", severity, 1, 5)
    chosen = choose_domains(domains, CORRUPTIONS, CORRUPTIONS + EXTRA_CORRUPTIONS)
    parts = [LABELS, f"severity_{severity}", *(f"{corruption}.npy" for corruption in chosen)]
    root = find_root(root, [Path(archive.file).stem], parts)
    reading = Reading(name, root, classes, identity={"severity": severity})
    remedy = f"`ramen data download {name}`, or {archive.page}"
    made_here = reading.read_record()
    folder, position, severities = _locate(root, severity)
    labels = _read_labels(reading, folder / LABELS, severities, remedy)
    if labels is not None and not made_here and len(labels) * 5 != RELEASED_ROWS * severities:
        what = f"has {len(labels):,} labels, the released file has {RELEASED_ROWS:,}"
        reading.add("difference", folder / LABELS, what, remedy)
    for corruption in chosen:
        path = folder / f"{corruption}.npy"
        rows = _check_array(reading, path, remedy)
        if rows is None or labels is None:
            continue
        if rows != len(labels):
            what = f"has {rows:,} images for the {len(labels):,} labels of {LABELS}"
            reading.add("error", path, what, remedy)
            continue
        count = rows // severities
        start = position * count
        images = ArrayFileImages(path, start, count)
        reading.domains.append(Domain(corruption, labels[start : start + count], images))
    return reading


def _locate(root: Path, severity: int) -> tuple[Path, int, int]:
    """The folder of the files, the position of the severity in them, and how many severities they hold."""
    own = root / f"severity_{severity}"
    if own.is_dir() and not (root / LABELS).exists():
        return own, 0, 1
    return root, severity - 1, 5


def _read_labels(reading: Reading, path: Path, severities: int, remedy: str) -> Labels | None:
    labels = _open(reading, path, remedy)
    if labels is None:
        return None
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        what = f"must be whole numbers in one dimension, got {labels.dtype} {labels.shape}"
        reading.add("error", path, what, remedy)
        return None
    if not len(labels):
        reading.add("error", path, "has no labels", remedy)
        return None
    labels = np.asarray(labels, dtype=np.int64)
    lowest, highest, last = labels.min(), labels.max(), len(reading.classes) - 1
    if lowest < 0 or highest > last:
        reading.add("error", path, f"labels must be between 0 and {last}, got {lowest} to {highest}", remedy)
        return None
    count, rest = divmod(len(labels), severities)
    if rest or (labels.reshape(severities, count) != labels[:count]).any():
        what = (
            f"the {len(labels):,} labels must be those of the same images at each of {severities} severities"
        )
        remedy = f"{remedy}; a single severity must be in a folder severity_<number>"
        reading.add("error", path, what, remedy)
        return None
    return labels


def _check_array(reading: Reading, path: Path, remedy: str) -> int | None:
    """The number of images in the file; None if it is missing or damaged."""
    array = _open(reading, path, remedy)
    if array is None:
        return None
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1:] != (SIDE, SIDE, 3):
        what = f"must be uint8 (n, {SIDE}, {SIDE}, 3), got {array.dtype} {array.shape}"
        reading.add("error", path, what, remedy)
        return None
    return len(array)


def _open(reading: Reading, path: Path, remedy: str) -> Any:
    try:
        return open_array(path)
    except FileNotFoundError:
        reading.add("error", path, "missing", remedy)
    except ValueError as error:
        reading.add("error", path, str(error).removeprefix(f"{path} "), remedy)
    return None
