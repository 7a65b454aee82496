"""ImageNet-C in the layout of its release: ``<corruption>/<severity>/<class>/<image>``.

Published results of test-time adaptation mostly use 5,000 of the 50,000 images, the same for each corruption,
from a list that RobustBench provides. The class folders of the release are named by WordNet ids; the names
used in prompts come from a file ``classnames.txt`` with an id and a name per line, or from open_clip.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from ramen.data import archives
from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from ramen.data.dataset import Domain
from ramen.data.formats.class_folders import (
    FilesByClass,
    add_domain,
    find_class_folders,
    names_from_folders,
    scan_domain,
)
from ramen.data.formats.reading import Reading, choose_domains, find_root, first_few
from ramen.data.formats.stored_images import ImageFiles
from ramen.utils import checks

CLASSES = 1_000
IMAGES = 50_000
LISTED_IMAGES = 5_000
NAMES_FILE = "classnames.txt"
LIST_FILE = "imagenet_test_image_ids.txt"
SOURCE = f"get it from {archives.IMAGENETC[0].page}"
LIST_SOURCE = (
    f"RobustBench has it as robustbench/data/{LIST_FILE}, https://github.com/RobustBench/robustbench"
)
NAMES_SOURCE = "CoOp describes it at https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
FOLDERS = ("ImageNet-C", "imagenet-c", "imagenet_c", "ImageNetC")

_WORDNET_ID = re.compile(r"n\d{8}")


def read_imagenetc(
    root: Path,
    severity: int = 5,
    domains: Sequence[str] | None = None,
    class_names: str | os.PathLike[str] | None = None,
) -> Reading:
    """Read all images of ImageNet-C, or of a set in its layout; ``domains`` are corruptions."""
    reading, places = _start("imagenetc", root, severity, domains)
    made_here = reading.read_record()
    files = {domain: scan_domain(reading, place, SOURCE) for domain, place in places.items()}
    class_indices = _index_classes(reading, severity, class_names)
    for domain, place in places.items():
        add_domain(reading, domain, place, files[domain], class_indices)
        count = sum(map(len, files[domain].values()))
        if not made_here and _is_imagenet(class_indices) and count and count != IMAGES:
            what = f"has {count:,} images, the released folder has {IMAGES:,}"
            reading.add("difference", place, what, SOURCE)
    return reading


def read_imagenetc5k(
    root: Path,
    severity: int = 5,
    domains: Sequence[str] | None = None,
    class_names: str | os.PathLike[str] | None = None,
    image_list: str | os.PathLike[str] | None = None,
) -> Reading:
    """Read the images of ImageNet-C that a list names; ``domains`` are corruptions."""
    reading, places = _start("imagenetc5k", root, severity, domains)
    reading.read_record()
    entries = _read_list(reading, _find_file(reading.root, image_list, LIST_FILE))
    files = {domain: scan_domain(reading, place, SOURCE) for domain, place in places.items()}
    class_indices = _index_classes(reading, severity, class_names)
    unknown = sorted({folder for folder, _ in entries if folder not in class_indices})
    if unknown and class_indices:
        what = f"the list names class folders that do not exist: {first_few(unknown)}"
        reading.add("error", reading.root, what, SOURCE)
    known = [entry for entry in entries if entry[0] in class_indices]
    for domain, place in places.items():
        _add_listed(reading, domain, place, files[domain], known, class_indices)
    return reading


def _start(
    name: str, root: Path, severity: int, domains: Sequence[str] | None
) -> tuple[Reading, dict[str, Path]]:
    checks.integer("severity", severity, 1, 5)
    chosen = choose_domains(domains, CORRUPTIONS, CORRUPTIONS + EXTRA_CORRUPTIONS)
    root = find_root(root, FOLDERS, chosen)
    reading = Reading(name, root, identity={"severity": severity})
    return reading, {corruption: root / corruption / str(severity) for corruption in chosen}


def _is_imagenet(folders: Mapping[str, int]) -> bool:
    return len(folders) == CLASSES and all(map(_WORDNET_ID.fullmatch, folders))


def _find_file(root: Path, given: str | os.PathLike[str] | None, usual_name: str) -> Path | None:
    """The given file, or the one with the usual name in the folder of the data set or its parent."""
    if given is not None:
        return Path(given)
    return next((f / usual_name for f in (root, root.parent) if (f / usual_name).is_file()), None)


def _index_classes(reading: Reading, severity: int, given: str | os.PathLike[str] | None) -> dict[str, int]:
    """Number the class folders and name the classes; the identity records where the names came from."""
    corruptions = CORRUPTIONS + EXTRA_CORRUPTIONS
    folders = find_class_folders(reading.root / name / str(severity) for name in corruptions)
    file = _find_file(reading.root, given, NAMES_FILE)
    if file is not None:
        return _read_names(reading, file, folders)
    class_indices = {folder: index for index, folder in enumerate(folders)}
    if _is_imagenet(class_indices):
        from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

        reading.classes = tuple(IMAGENET_CLASSNAMES)
        reading.identity["class_names"] = "open_clip"
    elif any(map(_WORDNET_ID.fullmatch, folders)):
        odd = [folder for folder in folders if not _WORDNET_ID.fullmatch(folder)]
        what = f"has {len(folders):,} class folders, ImageNet has {CLASSES:,}" + (
            f"; not of ImageNet: {first_few(odd)}" if odd else ""
        )
        remedy = f"{SOURCE}; for a subset of the classes put {NAMES_FILE} next to the data: {NAMES_SOURCE}"
        reading.add("error", reading.root, what, remedy)
    else:
        reading.classes = names_from_folders(reading, folders)
        reading.identity["class_names"] = "folders"
    return class_indices


def _read_names(reading: Reading, file: Path, folders: list[str]) -> dict[str, int]:
    """Take the classes from lines of class folder and class name, sorted by class folder."""
    content = _read_text(reading, file, NAMES_SOURCE)
    lines = [line.split(maxsplit=1) for line in content.splitlines() if line.strip()]
    unnamed = [words[0] for words in lines if len(words) < 2]
    names = {words[0]: words[1].replace("_", " ").strip() for words in lines if len(words) == 2}
    if unnamed or not names or len(names) < len(lines):
        what = "must have one class folder and its name per line, each folder once"
        what += f"; without a name: {first_few(unnamed) or 'none'}"
        reading.add("error", file, what, NAMES_SOURCE)
        return {}
    unknown = [folder for folder in folders if folder not in names]
    if unknown:
        what = f"does not name {len(unknown):,} class folders: {first_few(unknown)}"
        reading.add("error", file, what, "remove the folders, or name them")
    ordered = sorted(names)
    reading.classes = tuple(names[folder] for folder in ordered)
    reading.identity["class_names"] = {
        "file": file.name,
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
    return {folder: index for index, folder in enumerate(ordered)}


def _read_list(reading: Reading, file: Path | None) -> list[tuple[str, str]]:
    """Class folder and file name of each line."""
    if file is None:
        what = "the list of images is missing: give it as image_list, or put it here"
        reading.add("error", reading.root / LIST_FILE, what, LIST_SOURCE)
        return []
    content = _read_text(reading, file, LIST_SOURCE)
    entries: dict[tuple[str, str], None] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        parts = PurePosixPath(line.strip()).parts
        if not parts:
            continue
        if len(parts) != 2 or ".." in parts or parts[0] == "/" or parts in entries:
            wrong = (
                "is listed twice" if parts in entries else "must be a class folder, a slash and a file name"
            )
            reading.add("error", f"{file}, line {number}", f"{line.strip()!r} {wrong}", LIST_SOURCE)
            continue
        entries[parts[0], parts[1]] = None
    if content and len(entries) != LISTED_IMAGES:
        what = f"names {len(entries):,} images, the published list names {LISTED_IMAGES:,}"
        reading.add("difference", file, what, LIST_SOURCE)
    reading.identity["image_list"] = {
        "file": file.name,
        "pictures": len(entries),
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
    return list(entries)


def _add_listed(
    reading: Reading,
    domain: str,
    place: Path,
    files: FilesByClass,
    entries: list[tuple[str, str]],
    class_indices: Mapping[str, int],
) -> None:
    existing = {folder: set(names) for folder, names in files.items()}
    missing = [f"{folder}/{file}" for folder, file in entries if file not in existing.get(folder, ())]
    if missing and files:
        what = f"{len(missing):,} of {len(entries):,} listed images are missing: {first_few(missing)}"
        reading.add("error", place, what, SOURCE)
    elif entries and files:
        labels = np.array([class_indices[folder] for folder, _ in entries], dtype=np.int64)
        images = ImageFiles(place, tuple(f"{folder}/{file}" for folder, file in entries))
        reading.domains.append(Domain(domain, labels, images))


def _read_text(reading: Reading, file: Path, remedy: str) -> str:
    try:
        content = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reading.add("error", file, f"cannot be read: {error}", remedy)
        return ""
    if not content.strip():
        reading.add("error", file, "is empty", remedy)
    return content
