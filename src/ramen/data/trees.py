"""Folders of image files with a folder per class: ``domain/class/image``.

DomainBed's data sets in the layout of its download script, a folder of your own, and ImageNet-C in the layout
of its release, ``<corruption>/<severity>/<class>/<image>``. Published results of test-time adaptation mostly
use 5,000 of ImageNet-C's 50,000 images, the same for each corruption, from a list that RobustBench provides.
The class folders of its release are named by WordNet ids; the names used in prompts come from a file
``classnames.txt`` with an id and a name per line, or from open_clip.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath

import numpy as np

from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from ramen.data.dataset import Domain, ImageFiles
from ramen.data.reading import DataInfo, Reading, choose_domains, find_root, first_few
from ramen.images.file_checks import has_image_suffix
from ramen.utils import checks

NAMES_FILE = "classnames.txt"
LIST_FILE = "imagenet_test_image_ids.txt"
LIST_SOURCE = (
    f"RobustBench has it as robustbench/data/{LIST_FILE}, https://github.com/RobustBench/robustbench"
)
_NAMES_SOURCE = "CoOp describes it at https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
_IMAGES, _LISTED_IMAGES = 50_000, 5_000
_WORDNET_ID = re.compile(r"n\d{8}")

FilesByClass = dict[str, list[str]]  # the image files in each class folder, both sorted by name


def read_folder(info: DataInfo, root: Path, domains: Sequence[str] | None = None) -> Reading:
    """Read a folder ``domain/class/image``; the classes are those of all domains together, sorted by name."""
    remedy = "it must hold domain/class/image"
    reading = Reading(info.name, root)
    if not reading.has_folder(root, remedy):
        return reading
    found = _folders(root)
    if not found:
        reading.add("error", root, "has no folder in it", remedy)
        return reading
    chosen = choose_domains(domains, found, found)
    folders = _class_folders(root / name for name in found)
    class_indices = _name_by_folders(reading, folders)
    for name in chosen:
        _add_domain(reading, name, root / name, _scan(reading, root / name), class_indices)
    return reading


def read_domains(info: DataInfo, root: Path, domains: Sequence[str] | None = None) -> Reading:
    """Read a data set whose domains and classes are known."""
    chosen = choose_domains(domains, tuple(info.counts), tuple(info.counts))
    # copies write the space differently: "Real World", "Real_World", "RealWorld"
    spellings = {name: [name.replace(" ", space) for space in (" ", "_", "")] for name in info.counts}
    root = find_root(root, info.folders, chain.from_iterable(spellings.values()))
    reading = Reading(info.name, root)
    remedy = f"get it from {info.source}"
    places = {
        name: next((root / spelling for spelling in written if (root / spelling).is_dir()), root / name)
        for name, written in spellings.items()
    }
    folders = _class_folders(places.values())
    if folders and len(folders) != info.classes:
        what = f"{info.title} has {info.classes} classes, but there are {len(folders)} class folders"
        there = [place for place in places.values() if place.is_dir()]
        # what most domains do not have is probably no class of the release
        odd = [name for name in folders if sum((p / name).is_dir() for p in there) * 2 < len(there)]
        what += f"; few domains have {first_few(map(repr, odd))}" if odd else ""
        reading.add("error", root, what, remedy)
    class_indices = _name_by_folders(reading, folders)
    for name in chosen:
        files = _scan(reading, places[name], remedy)
        _add_domain(reading, name, places[name], files, class_indices)
        count, released = sum(map(len, files.values())), info.counts[name]
        if count and released and count != released:
            what = f"has {count:,} images, the released domain {released:,}: {abs(count - released):,} "
            what += "missing" if count < released else "too many"
            reading.add("difference", places[name], what, remedy)
    return reading


def read_imagenetc(
    info: DataInfo,
    root: Path,
    severity: int = 5,
    domains: Sequence[str] | None = None,
    class_names: str | os.PathLike[str] | None = None,
) -> Reading:
    """Read all images of ImageNet-C, or of a set in its layout; ``domains`` are corruptions."""
    reading, places = _start(info, root, severity, domains)
    made_here, remedy = reading.read_record(), _get_it(info)
    files = {domain: _scan(reading, place, remedy) for domain, place in places.items()}
    class_indices = _index_classes(reading, info, severity, class_names)
    for domain, place in places.items():
        _add_domain(reading, domain, place, files[domain], class_indices)
        count = sum(map(len, files[domain].values()))
        if not made_here and _is_imagenet(class_indices, info) and count and count != _IMAGES:
            what = f"has {count:,} images, the released folder has {_IMAGES:,}"
            reading.add("difference", place, what, remedy)
    return reading


def read_imagenetc5k(
    info: DataInfo,
    root: Path,
    severity: int = 5,
    domains: Sequence[str] | None = None,
    class_names: str | os.PathLike[str] | None = None,
    image_list: str | os.PathLike[str] | None = None,
) -> Reading:
    """Read the images of ImageNet-C that a list names; ``domains`` are corruptions."""
    reading, places = _start(info, root, severity, domains)
    reading.read_record()
    remedy = _get_it(info)
    entries = _read_list(reading, _find_file(reading.root, image_list, LIST_FILE))
    scanned = {domain: _scan(reading, place, remedy) for domain, place in places.items()}
    class_indices = _index_classes(reading, info, severity, class_names)
    unknown = sorted({folder for folder, _ in entries if folder not in class_indices})
    if unknown and class_indices:
        what = f"the list names class folders that do not exist: {first_few(unknown)}"
        reading.add("error", reading.root, what, remedy)
    known = [entry for entry in entries if entry[0] in class_indices]
    for domain, place in places.items():
        existing = {folder: set(names) for folder, names in scanned[domain].items()}
        missing = [f"{folder}/{file}" for folder, file in known if file not in existing.get(folder, ())]
        if missing and existing:
            what = f"{len(missing):,} of {len(known):,} listed images are missing: {first_few(missing)}"
            reading.add("error", place, what, remedy)
        elif known and existing:
            labels = np.array([class_indices[folder] for folder, _ in known], dtype=np.int64)
            images = ImageFiles(place, tuple(f"{folder}/{file}" for folder, file in known))
            reading.domains.append(Domain(domain, labels, images))
    return reading


# -- class folders ----------------------------------------------------------------------------------------


def _folders(place: Path) -> list[str]:
    with os.scandir(place) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _class_folders(domains: Iterable[Path]) -> list[str]:
    """The names of the class folders of these domains, sorted.

    Callers pass all domains that exist, requested or not: the request must not change the class indices.
    """
    return sorted({name for domain in domains if domain.is_dir() for name in _folders(domain)})


def _scan(reading: Reading, folder: Path, remedy: str = "") -> FilesByClass:
    """The class folders of a domain with their image files; reports what is missing or ignored."""
    if not reading.has_folder(folder, remedy):
        return {}
    found: FilesByClass = {}
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                found[entry.name] = _image_files(reading, Path(entry.path))
            else:
                reading.add("note", entry.path, "is ignored: it is not in a class folder")
    if not any(found.values()):
        reading.add("error", folder, "has no image in any class folder", remedy)
    return found


def _image_files(reading: Reading, folder: Path) -> list[str]:
    images: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                image = has_image_suffix(entry.name) and not entry.is_dir()
                (images if image else others).append(entry.name)
    if others:
        reading.add("note", folder, f"ignored, not named like image files: {first_few(sorted(others))}")
    return sorted(images)


def _name_by_folders(reading: Reading, folders: list[str]) -> dict[str, int]:
    """Name the classes by their folders, as used in prompts, and number them; no two may mean the same."""
    names: dict[str, str] = {}
    for folder in folders:
        name = folder.replace("_", " ").strip()
        if name in names:
            what = f"the class folders {names[name]!r} and {folder!r} both mean {name!r}"
            reading.add("error", reading.root, what, "rename one, or merge them")
        names[name] = folder
    reading.classes = tuple(names)
    return {folder: index for index, folder in enumerate(folders)}


def _add_domain(
    reading: Reading, name: str, folder: Path, files: FilesByClass, class_indices: Mapping[str, int]
) -> None:
    """Add a scanned folder to the domains; ``class_indices`` has the class index of each class folder."""
    absent = [known for known in class_indices if not files.get(known)]
    if absent:
        reading.add("note", folder, f"has no image of {len(absent):,} classes: {first_few(absent)}")
    labelled = [
        (label, f"{known}/{file}") for known, label in class_indices.items() for file in files.get(known, [])
    ]
    if labelled:
        labels = np.array([label for label, _ in labelled], dtype=np.int64)
        images = ImageFiles(folder, tuple(file for _, file in labelled))
        reading.domains.append(Domain(name, labels, images))


# -- ImageNet-C -------------------------------------------------------------------------------------------


def _start(
    info: DataInfo, root: Path, severity: int, domains: Sequence[str] | None
) -> tuple[Reading, dict[str, Path]]:
    checks.integer("severity", severity, 1, 5)
    chosen = choose_domains(domains, CORRUPTIONS, CORRUPTIONS + EXTRA_CORRUPTIONS)
    root = find_root(root, info.folders, chosen)
    reading = Reading(info.name, root, identity={"severity": severity})
    return reading, {corruption: root / corruption / str(severity) for corruption in chosen}


def _get_it(info: DataInfo) -> str:
    return f"get it from {info.archives[0].page}"


def _is_imagenet(folders: Mapping[str, int], info: DataInfo) -> bool:
    return len(folders) == info.classes and all(map(_WORDNET_ID.fullmatch, folders))


def _find_file(root: Path, given: str | os.PathLike[str] | None, usual_name: str) -> Path | None:
    """The given file, or the one with the usual name in the folder of the data set or its parent."""
    if given is not None:
        return Path(given)
    return next((f / usual_name for f in (root, root.parent) if (f / usual_name).is_file()), None)


def _index_classes(
    reading: Reading, info: DataInfo, severity: int, given: str | os.PathLike[str] | None
) -> dict[str, int]:
    """Number the class folders and name the classes; the identity records where the names came from."""
    corruptions = CORRUPTIONS + EXTRA_CORRUPTIONS
    folders = _class_folders(reading.root / name / str(severity) for name in corruptions)
    file = _find_file(reading.root, given, NAMES_FILE)
    if file is not None:
        return _read_names(reading, file, folders)
    class_indices = {folder: index for index, folder in enumerate(folders)}
    if _is_imagenet(class_indices, info):
        from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

        reading.classes = tuple(IMAGENET_CLASSNAMES)
        reading.identity["class_names"] = "open_clip"
    elif any(map(_WORDNET_ID.fullmatch, folders)):
        odd = [folder for folder in folders if not _WORDNET_ID.fullmatch(folder)]
        what = f"has {len(folders):,} class folders, ImageNet has {info.classes:,}"
        what += f"; not of ImageNet: {first_few(odd)}" if odd else ""
        subset = f"for a subset of the classes put {NAMES_FILE} next to the data: {_NAMES_SOURCE}"
        reading.add("error", reading.root, what, f"{_get_it(info)}; {subset}")
    else:
        _name_by_folders(reading, folders)
        reading.identity["class_names"] = "folders"
    return class_indices


def _read_names(reading: Reading, file: Path, folders: list[str]) -> dict[str, int]:
    """Take the classes from lines of class folder and class name, sorted by class folder."""
    content = _read_text(reading, file, _NAMES_SOURCE)
    lines = [line.split(maxsplit=1) for line in content.splitlines() if line.strip()]
    unnamed = [words[0] for words in lines if len(words) < 2]
    names = {words[0]: words[1].replace("_", " ").strip() for words in lines if len(words) == 2}
    if unnamed or not names or len(names) < len(lines):
        what = "must have one class folder and its name per line, each folder once"
        what += f"; without a name: {first_few(unnamed) or 'none'}"
        reading.add("error", file, what, _NAMES_SOURCE)
        return {}
    unknown = [folder for folder in folders if folder not in names]
    if unknown:
        what = f"does not name {len(unknown):,} class folders: {first_few(unknown)}"
        reading.add("error", file, what, "remove the folders, or name them")
    ordered = sorted(names)
    reading.classes = tuple(names[folder] for folder in ordered)
    digest = hashlib.sha256(content.encode()).hexdigest()
    reading.identity["class_names"] = {"file": file.name, "sha256": digest}
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
            twice = parts in entries
            wrong = "is listed twice" if twice else "must be a class folder, a slash and a file name"
            reading.add("error", f"{file}, line {number}", f"{line.strip()!r} {wrong}", LIST_SOURCE)
            continue
        entries[parts[0], parts[1]] = None
    if content and len(entries) != _LISTED_IMAGES:
        what = f"names {len(entries):,} images, the published list names {_LISTED_IMAGES:,}"
        reading.add("difference", file, what, LIST_SOURCE)
    digest = hashlib.sha256(content.encode()).hexdigest()
    reading.identity["image_list"] = {"file": file.name, "pictures": len(entries), "sha256": digest}
    return list(entries)


def _read_text(reading: Reading, file: Path, remedy: str) -> str:
    try:
        content = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reading.add("error", file, f"cannot be read: {error}", remedy)
        return ""
    if not content.strip():
        reading.add("error", file, "is empty", remedy)
    return content
