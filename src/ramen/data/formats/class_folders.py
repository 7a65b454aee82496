"""Folders of image files, one folder for each class."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from ramen.data.dataset import Domain
from ramen.data.formats.reading import Reading, listed
from ramen.data.formats.stored_images import FilePictures
from ramen.images.file_suffixes import names_an_image

ClassFolders = dict[str, list[str]]  # the files in each, both in the order of their names


def scan(reading: Reading, folder: Path, remedy: str = "") -> ClassFolders:
    """The class folders of a domain with their image files; what is missing or left out becomes a finding."""
    if not folder.is_dir():
        reading.add("error", folder, "missing" if not folder.exists() else "is not a folder", remedy)
        return {}
    found: ClassFolders = {}
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                found[entry.name] = _image_files(reading, Path(entry.path))
            else:
                reading.add("note", entry.path, "is left out: it lies in no class folder")
    if not any(found.values()):
        reading.add("error", folder, "has no image in any class folder", remedy)
    return found


def class_folders(domains: Iterable[Path]) -> list[str]:
    """The names of the class folders of all these domains, in their order.

    From all domains that are there, chosen or not: the numbers of classes do not depend on the choice.
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
            image = names_an_image(entry.name) and not entry.is_dir()
            (images if image else others).append(entry.name)
    if others:
        reading.add("note", folder, f"left out, not image files by their names: {listed(sorted(others))}")
    return sorted(images)


def class_names(reading: Reading, folders: list[str]) -> tuple[str, ...]:
    """Folder names as prompts have them; two folders must not become the same name."""
    names: dict[str, str] = {}
    for folder in folders:
        name = folder.replace("_", " ").strip()
        if name in names:
            what = f"the class folders {names[name]!r} and {folder!r} both mean {name!r}"
            reading.add("error", reading.root, what, "rename one, or join them")
        names[name] = folder
    return tuple(names)


def add_domain(
    reading: Reading, name: str, folder: Path, content: ClassFolders, numbers: Mapping[str, int]
) -> None:
    """Put a scanned folder among the domains; ``numbers`` are those of the class folders."""
    absent = [known for known in numbers if not content.get(known)]
    if absent:
        reading.add("note", folder, f"has no image of {len(absent):,} classes: {listed(absent)}")
    files = [
        (number, f"{known}/{file}") for known, number in numbers.items() for file in content.get(known, [])
    ]
    labels = np.array([number for number, _ in files], dtype=np.int64)
    if files:
        reading.domains.append(Domain(name, labels, FilePictures(folder, tuple(file for _, file in files))))
