"""CIFAR-10-C and CIFAR-100-C in the layout of their release: an array file for each corruption.

``<corruption>.npy`` holds the test pictures at severity 1, then at severity 2, and so on; ``labels.npy`` has
their classes, row by row. Files with fewer pictures are read in the same way. A set made with only some
severities says so in ``made.json``: ``{"severities": [5]}``.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramen import checks
from ramen.data import archives, names
from ramen.data.archives import Archive
from ramen.data.dataset import Domain, Labels
from ramen.data.reading import Reading, choose_domains, find_root
from ramen.data.stored import ArrayPictures, open_array

SEVERITIES = (1, 2, 3, 4, 5)
RELEASED_ROWS = 50_000
SIDE = 32
MADE = "made.json"
LABELS = "labels.npy"


def read_cifar10c(root: Path, severity: int = 5, domains: Sequence[str] | None = None) -> Reading:
    """CIFAR-10-C; ``domains`` are corruptions."""
    return _read("cifar10c", root, names.CIFAR10, archives.CIFAR10C, severity, domains)


def read_cifar100c(root: Path, severity: int = 5, domains: Sequence[str] | None = None) -> Reading:
    """CIFAR-100-C; ``domains`` are corruptions."""
    return _read("cifar100c", root, names.CIFAR100, archives.CIFAR100C, severity, domains)


def _read(
    name: str,
    root: Path,
    classes: tuple[str, ...],
    archive: Archive,
    severity: int,
    domains: Sequence[str] | None,
) -> Reading:
    checks.integer("severity", severity, 1, 5)
    chosen = choose_domains(domains, names.CORRUPTIONS, names.CORRUPTIONS + names.EXTRA_CORRUPTIONS)
    root = find_root(
        root, [Path(archive.file).stem], [LABELS, *(f"{corruption}.npy" for corruption in chosen)]
    )
    reading = Reading(name, root, classes, identity={"severity": severity})
    remedy = f"`ramen data download {name}`, or {archive.page}"

    made = _read_made(reading)
    labels = _read_labels(reading, remedy, made)
    within = made.get("severities", list(SEVERITIES))
    for corruption in chosen:
        path = root / f"{corruption}.npy"
        rows = _check_array(reading, path, remedy)
        if rows is None or labels is None:
            continue
        if rows != len(labels):
            reading.add(
                "error", path, f"has {rows:,} pictures for the {len(labels):,} labels of {LABELS}", remedy
            )
            continue
        if severity not in within:
            reading.add(
                "error", path, f"has no severity {severity}, only {', '.join(map(str, within))}", remedy
            )
            continue
        count = rows // len(within)
        start = within.index(severity) * count
        pictures = ArrayPictures(path, start, count)
        reading.domains.append(Domain(corruption, labels[start : start + count], pictures))
    if made:
        reading.identity["made"] = made
    return reading


def _read_made(reading: Reading) -> dict[str, Any]:
    """What our own maker wrote down about its files; nothing for released ones."""
    path = reading.root / MADE
    if not path.exists():
        return {}
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        severities = made.get("severities", list(SEVERITIES))
        sound = (
            bool(severities)
            and len(set(severities)) == len(severities)
            and set(severities) <= set(SEVERITIES)
        )
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reading.add("error", path, f"cannot be read: {error}", "make the set again, or remove this file")
        return {}
    if not sound:
        reading.add("error", path, f"severities must be different ones of 1 to 5, got {severities!r}")
        return {}
    return {**made, "severities": severities}


def _read_labels(reading: Reading, remedy: str, made: dict[str, Any]) -> Labels | None:
    path = reading.root / LABELS
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
    parts = len(made["severities"]) if made else len(SEVERITIES)
    if len(labels) % parts or (labels.reshape(parts, -1) != labels[: len(labels) // parts]).any():
        what = f"the {len(labels):,} labels must be those of the same pictures at each of {parts} severities"
        reading.add("error", path, what, f"{remedy}; a set of fewer severities says so in {MADE}")
        return None
    if not made and len(labels) != RELEASED_ROWS:
        reading.add(
            "difference", path, f"has {len(labels):,} labels, the released file {RELEASED_ROWS:,}", remedy
        )
    return labels


def _check_array(reading: Reading, path: Path, remedy: str) -> int | None:
    """The number of pictures of a sound file."""
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
