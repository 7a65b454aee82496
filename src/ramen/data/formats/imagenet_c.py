"""ImageNet-C in the layout of its release: ``<corruption>/<severity>/<class>/<image>``.

Published results of test-time adaptation mostly use 5,000 of the 50,000 pictures, the same for each
corruption, from a list that RobustBench carries. The folders of the release are called by WordNet's numbers;
the names that prompts use come from a file ``classnames.txt`` with a number and a name a line, or from
open_clip.
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
from ramen.data.formats import class_folders
from ramen.data.formats.class_folders import ClassFolders, add_domain, scan
from ramen.data.formats.reading import Reading, choose_domains, find_root, listed
from ramen.data.formats.stored_images import FilePictures
from ramen.utils import checks

CLASSES = 1_000
PICTURES = 50_000
LISTED_PICTURES = 5_000
NAMES_FILE = "classnames.txt"
LIST_FILE = "imagenet_test_image_ids.txt"
SOURCE = f"get it from {archives.IMAGENETC[0].page}"
LIST_SOURCE = (
    f"RobustBench has it as robustbench/data/{LIST_FILE}, https://github.com/RobustBench/robustbench"
)
NAMES_SOURCE = "CoOp describes it at https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
FOLDERS = ("ImageNet-C", "imagenet-c", "imagenet_c", "ImageNetC")

_WORDNET = re.compile(r"n\d{8}")


def read_imagenetc(
    root: Path,
    severity: int = 5,
    domains: Sequence[str] | None = None,
    class_names: str | os.PathLike[str] | None = None,
) -> Reading:
    """All pictures of ImageNet-C, or of a set in its layout; ``domains`` are corruptions."""
    reading, places = _start("imagenetc", root, severity, domains)
    made = reading.read_made()
    contents = {domain: scan(reading, place, SOURCE) for domain, place in places.items()}
    numbers = _class_numbers(reading, severity, class_names)
    for domain, place in places.items():
        add_domain(reading, domain, place, contents[domain], numbers)
        came = sum(map(len, contents[domain].values()))
        if not made and _is_imagenet(numbers) and came and came != PICTURES:
            reading.add("difference", place, f"has {came:,} images, the released folder {PICTURES:,}", SOURCE)
    return reading


def read_imagenetc5k(
    root: Path,
    severity: int = 5,
    domains: Sequence[str] | None = None,
    class_names: str | os.PathLike[str] | None = None,
    image_list: str | os.PathLike[str] | None = None,
) -> Reading:
    """The pictures of ImageNet-C that a list names; ``domains`` are corruptions."""
    reading, places = _start("imagenetc5k", root, severity, domains)
    reading.read_made()
    entries = _read_list(reading, _beside(reading.root, image_list, LIST_FILE))
    contents = {domain: scan(reading, place, SOURCE) for domain, place in places.items()}
    numbers = _class_numbers(reading, severity, class_names)
    unknown = sorted({folder for folder, _ in entries if folder not in numbers})
    if unknown and numbers:
        reading.add(
            "error",
            reading.root,
            f"the list names class folders that are not there: {listed(unknown)}",
            SOURCE,
        )
    for domain, place in places.items():
        _add_listed(
            reading, domain, place, contents[domain], [e for e in entries if e[0] in numbers], numbers
        )
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
    return len(folders) == CLASSES and all(map(_WORDNET.fullmatch, folders))


def _beside(root: Path, given: str | os.PathLike[str] | None, known: str) -> Path | None:
    """The file given, or the one of the known name in the folder of the data set or the one around it."""
    if given is not None:
        return Path(given)
    return next((folder / known for folder in (root, root.parent) if (folder / known).is_file()), None)


def _class_numbers(reading: Reading, severity: int, given: str | os.PathLike[str] | None) -> dict[str, int]:
    """Number the class folders and name the classes; the identity tells where the names came from."""
    corruptions = CORRUPTIONS + EXTRA_CORRUPTIONS
    folders = class_folders.class_folders(reading.root / name / str(severity) for name in corruptions)
    file = _beside(reading.root, given, NAMES_FILE)
    if file is not None:
        return _names_of_file(reading, file, folders)
    numbers = {folder: number for number, folder in enumerate(folders)}
    if _is_imagenet(numbers):
        from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

        reading.classes = tuple(IMAGENET_CLASSNAMES)
        reading.identity["class_names"] = "open_clip"
    elif any(map(_WORDNET.fullmatch, folders)):
        odd = [folder for folder in folders if not _WORDNET.fullmatch(folder)]
        what = f"has {len(folders):,} class folders, ImageNet {CLASSES:,}" + (
            f"; not of ImageNet: {listed(odd)}" if odd else ""
        )
        remedy = f"{SOURCE}; for a part of the classes put {NAMES_FILE} beside the data: {NAMES_SOURCE}"
        reading.add("error", reading.root, what, remedy)
    else:
        reading.classes = class_folders.class_names(reading, folders)
        reading.identity["class_names"] = "folders"
    return numbers


def _names_of_file(reading: Reading, file: Path, folders: list[str]) -> dict[str, int]:
    """Classes from lines of a folder's name and the class name, in the order of the folders' names."""
    content = _read_text(reading, file, NAMES_SOURCE)
    lines = [line.split(maxsplit=1) for line in content.splitlines() if line.strip()]
    short = [words[0] for words in lines if len(words) < 2]
    called = {words[0]: words[1].replace("_", " ").strip() for words in lines if len(words) == 2}
    if short or not called or len(called) < len(lines):
        what = f"must have a class folder and its name a line, none twice; no name: {listed(short) or 'none'}"
        reading.add("error", file, what, NAMES_SOURCE)
        return {}
    unknown = [folder for folder in folders if folder not in called]
    if unknown:
        what = f"does not name {len(unknown):,} class folders: {listed(unknown)}"
        reading.add("error", file, what, "remove the folders, or name them")
    ordered = sorted(called)
    reading.classes = tuple(called[folder] for folder in ordered)
    reading.identity["class_names"] = {
        "file": file.name,
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
    return {folder: number for number, folder in enumerate(ordered)}


def _read_list(reading: Reading, file: Path | None) -> list[tuple[str, str]]:
    """Class folder and file name of each line."""
    if file is None:
        what = "the list of pictures is missing: give it as image_list, or put it here"
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
                "is there twice" if parts in entries else "must be a class folder, a slash and a file name"
            )
            reading.add("error", f"{file}, line {number}", f"{line.strip()!r} {wrong}", LIST_SOURCE)
            continue
        entries[parts[0], parts[1]] = None
    if content and len(entries) != LISTED_PICTURES:
        what = f"names {len(entries):,} pictures, the published list {LISTED_PICTURES:,}"
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
    content: ClassFolders,
    entries: list[tuple[str, str]],
    numbers: Mapping[str, int],
) -> None:
    there = {folder: set(files) for folder, files in content.items()}
    missing = [f"{folder}/{file}" for folder, file in entries if file not in there.get(folder, ())]
    if missing and content:
        what = f"{len(missing):,} of {len(entries):,} listed pictures are missing: {listed(missing)}"
        reading.add("error", place, what, SOURCE)
    elif entries and content:
        labels = np.array([numbers[folder] for folder, _ in entries], dtype=np.int64)
        pictures = FilePictures(place, tuple(f"{folder}/{file}" for folder, file in entries))
        reading.domains.append(Domain(domain, labels, pictures))


def _read_text(reading: Reading, file: Path, remedy: str) -> str:
    try:
        content = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reading.add("error", file, f"cannot be read: {error}", remedy)
        return ""
    if not content.strip():
        reading.add("error", file, "is empty", remedy)
    return content
