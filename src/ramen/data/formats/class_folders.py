"""Folders of image files, one folder per class."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from ramen.data.dataset import Domain
from ramen.data.formats.reading import Reading, first_few
from ramen.data.formats.stored_images import ImageFiles
from ramen.images.file_suffixes import has_image_suffix

FilesByClass = dict[str, list[str]]  # the image files in each class folder, both sorted by name


def scan_domain(reading: Reading, folder: Path, remedy: str = "") -> FilesByClass:
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


def find_class_folders(domains: Iterable[Path]) -> list[str]:
    """The names of the class folders of these domains, sorted.

    Callers pass all domains that exist, requested or not: the request must not change the class indices.
    """
    found: set[str] = set()
    for domain in domains:
        if domain.is_dir():
            with os.scandir(domain) as entries:
                found.update(
                    entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
                )
    return sorted(found)


def _image_files(reading: Reading, folder: Path) -> list[str]:
    images: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            image = has_image_suffix(entry.name) and not entry.is_dir()
            (images if image else others).append(entry.name)
    if others:
        reading.add("note", folder, f"ignored, not named like image files: {first_few(sorted(others))}")
    return sorted(images)


def names_from_folders(reading: Reading, folders: list[str]) -> tuple[str, ...]:
    """Class names as used in prompts, from the folder names; two folders must not give the same name."""
    names: dict[str, str] = {}
    for folder in folders:
        name = folder.replace("_", " ").strip()
        if name in names:
            what = f"the class folders {names[name]!r} and {folder!r} both mean {name!r}"
            reading.add("error", reading.root, what, "rename one, or merge them")
        names[name] = folder
    return tuple(names)


def add_domain(
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
