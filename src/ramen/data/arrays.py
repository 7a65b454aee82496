"""Images in files of NumPy arrays: CIFAR-C in the layout of its release, and a file of your own.

CIFAR-C: ``<corruption>.npy`` holds the test images at severity 1, then at severity 2, and so on;
``labels.npy`` holds their classes, row by row. Files with fewer images are read in the same way. A set that
has only some severities stores each in a folder ``severity_<number>`` with files of its own.

Your own: one ``.npz`` file, in which ``labels`` holds the classes ``(n,)``. Every other array is a domain
``(n, H, W, 3)`` of uint8, all with the same images in the same order. ``clean`` is left out unless it is
requested by name. ``classes`` may hold the class names.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from ramen.data.dataset import ArrayFileImages, Domain, Labels, LoadedImages, open_array
from ramen.data.reading import DataInfo, Reading, choose_domains, find_root, first_few
from ramen.utils import checks

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_CIFAR100 = """
apple, aquarium fish, baby, bear, beaver, bed, bee, beetle, bicycle, bottle, bowl, boy, bridge, bus,
butterfly, camel, can, castle, caterpillar, cattle, chair, chimpanzee, clock, cloud, cockroach, couch,
crab, crocodile, cup, dinosaur, dolphin, elephant, flatfish, forest, fox, girl, hamster, house, kangaroo,
keyboard, lamp, lawn mower, leopard, lion, lizard, lobster, man, maple tree, motorcycle, mountain, mouse,
mushroom, oak tree, orange, orchid, otter, palm tree, pear, pickup truck, pine tree, plain, plate, poppy,
porcupine, possum, rabbit, raccoon, ray, road, rocket, rose, sea, seal, shark, shrew, skunk, skyscraper,
snail, snake, spider, squirrel, streetcar, sunflower, sweet pepper, table, tank, telephone, television,
tiger, tractor, train, trout, tulip, turtle, wardrobe, whale, willow tree, wolf, woman, worm
"""
CIFAR100 = tuple(name.strip() for name in _CIFAR100.split(","))

LABELS, CLASSES, CLEAN = "labels", "classes", "clean"
KNOWN_CLASSES = {"cifar10": CIFAR10, "cifar100": CIFAR100}

_RELEASED_ROWS, _SIDE = 50_000, 32
_LABELS_FILE = f"{LABELS}.npy"
_REMEDY = "write it with numpy.savez: labels (n,), and one array (n, H, W, 3) of uint8 per domain"


def read_cifar_c(
    info: DataInfo, root: Path, severity: int = 5, domains: Sequence[str] | None = None
) -> Reading:
    """CIFAR-10-C or CIFAR-100-C; ``domains`` are corruptions."""
    checks.integer("severity", severity, 1, 5)
    chosen = choose_domains(domains, CORRUPTIONS, CORRUPTIONS + EXTRA_CORRUPTIONS)
    own = f"severity_{severity}"
    root = find_root(root, info.folders, [_LABELS_FILE, own, *(f"{corruption}.npy" for corruption in chosen)])
    reading = Reading(info.name, root, info.class_names, identity={"severity": severity})
    remedy = f"`ramen data download {info.name}`, or {info.source}"
    made_here = reading.read_record()
    # the folder of the files, the position of the severity in them, and how many severities they hold
    alone = (root / own).is_dir() and not (root / _LABELS_FILE).exists()
    folder, position, severities = (root / own, 0, 1) if alone else (root, severity - 1, 5)
    labels = _read_labels(reading, folder / _LABELS_FILE, severities, remedy)
    if labels is not None and not made_here and len(labels) * 5 != _RELEASED_ROWS * severities:
        what = f"has {len(labels):,} labels, the released file has {_RELEASED_ROWS:,}"
        reading.add("difference", folder / _LABELS_FILE, what, remedy)
    for corruption in chosen:
        path = folder / f"{corruption}.npy"
        array = _open(reading, path, remedy)
        if array is None:
            continue
        if what := _wrong_pixels(array, labels, (_SIDE, _SIDE)):
            reading.add("error", path, what, remedy)
        elif labels is not None:
            count = len(array) // severities
            start = position * count
            images = ArrayFileImages(path, start, count)
            reading.domains.append(Domain(corruption, labels[start : start + count], images))
    return reading


def _wrong_pixels(array: NDArray[Any], labels: Labels | None, size: tuple[int, ...] | None = None) -> str:
    """What is wrong with an array of images; empty if nothing is."""
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1:] != (*(size or array.shape[1:3]), 3):
        height, width = size or ("H", "W")
        return f"must be uint8 (n, {height}, {width}, 3), got {array.dtype} {array.shape}"
    if labels is None or len(array) == len(labels):
        return ""
    return f"has {len(array):,} images for {len(labels):,} labels"


def _wrong_labels(labels: NDArray[Any]) -> str:
    """What is wrong with labels; empty if nothing is."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        return f"must be whole numbers in one dimension, got {labels.dtype} {labels.shape}"
    if not len(labels):
        return "has no labels"
    return f"must be at least 0, got {labels.min()}" if labels.min() < 0 else ""


def _read_labels(reading: Reading, path: Path, severities: int, remedy: str) -> Labels | None:
    labels = _open(reading, path, remedy)
    if labels is None:
        return None
    what, last = _wrong_labels(labels), len(reading.classes) - 1
    if not what and labels.max() > last:
        what = f"labels must be between 0 and {last}, got {labels.min()} to {labels.max()}"
    if what:
        reading.add("error", path, what, remedy)
        return None
    labels = np.asarray(labels, dtype=np.int64)
    count, rest = divmod(len(labels), severities)
    if rest or (labels.reshape(severities, count) != labels[:count]).any():
        what = f"the {len(labels):,} labels must be of the same images at each of {severities} severities"
        single = "a single severity must be in a folder severity_<number>"
        reading.add("error", path, what, f"{remedy}; {single}")
        return None
    return labels


def _open(reading: Reading, path: Path, remedy: str) -> Any:
    try:
        return open_array(path)
    except FileNotFoundError:
        reading.add("error", path, "missing", remedy)
    except ValueError as error:
        reading.add("error", path, str(error).removeprefix(f"{path} "), remedy)
    return None


def read_arrays(
    info: DataInfo,
    root: Path,
    domains: Sequence[str] | None = None,
    classes: str | Sequence[str] | None = None,
) -> Reading:
    """Read an ``.npz`` file; ``classes`` are names, the name of a known list, or None to use the file's."""
    reading = Reading(info.name, root)
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
        _read_domains(reading, file, domains, classes)
    reading.identity["sha256"] = hashlib.sha256(root.read_bytes()).hexdigest()
    return reading


def _read_domains(
    reading: Reading,
    file: Mapping[str, NDArray[Any]],
    domains: Sequence[str] | None,
    classes: str | Sequence[str] | None,
) -> None:
    if LABELS not in file:
        reading.add("error", reading.root, f"has no array {LABELS!r}; it has {first_few(file)}", _REMEDY)
        return
    labels = _read_array(reading, file, LABELS)
    if labels is None:
        return
    if what := _wrong_labels(labels):
        reading.add("error", reading.root, f"array {LABELS!r} {what}", _REMEDY)
        return
    labels = labels.astype(np.int64)
    reading.classes = _read_class_names(reading, file, classes, int(labels.max()) + 1)
    found = [name for name in file if name not in (LABELS, CLASSES)]
    chosen = choose_domains(domains, [name for name in found if name != CLEAN], found)
    if not chosen:
        reading.add("error", reading.root, "has no array of a domain", _REMEDY)
    for name in chosen:
        pixels = _read_array(reading, file, name)
        what = "" if pixels is None else _wrong_pixels(pixels, labels)
        if what:
            reading.add("error", reading.root, f"array {name!r} {what}", _REMEDY)
        elif pixels is not None:
            reading.domains.append(Domain(name, labels, LoadedImages(pixels)))


def _read_array(reading: Reading, file: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any] | None:
    try:
        return file[name]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reading.add("error", reading.root, f"array {name!r} cannot be read: {error}", _REMEDY)
        return None


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
        raise ValueError(
            f"{reading.root} does not name its {needed} classes: give the option classes (the names in the "
            f"order of the labels, or one of {', '.join(KNOWN_CLASSES)}), or put an array {CLASSES!r} of "
            "names into the file"
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
