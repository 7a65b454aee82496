"""Data sets of one's own: a folder ``domain/class/image``, or a table of paths, classes and domains."""

import csv
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ramen.data.dataset import Domain
from ramen.data.formats.class_folders import add_domain, class_folders, class_names, scan
from ramen.data.formats.reading import Reading, choose_domains, listed
from ramen.data.formats.stored_images import FilePictures

COLUMNS = ("path", "class", "domain")


def read_folder(root: Path, domains: Sequence[str] | None = None) -> Reading:
    """Any folder ``domain/class/image``; the classes are those of all domains together, by name."""
    reading = Reading("folder", root)
    if not root.is_dir():
        reading.add(
            "error",
            root,
            "is not a folder" if root.exists() else "missing",
            "it must hold domain/class/image",
        )
        return reading
    found = sorted(
        entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not found:
        reading.add("error", root, "has no folder in it", "it must hold domain/class/image")
        return reading
    chosen = choose_domains(domains, found, found)
    folders = class_folders(root / name for name in found)
    reading.classes = class_names(reading, folders)
    numbers = {folder: number for number, folder in enumerate(folders)}
    for name in chosen:
        add_domain(reading, name, root / name, scan(reading, root / name), numbers)
    return reading


def read_manifest(root: Path, domains: Sequence[str] | None = None) -> Reading:
    """A CSV file with the columns path, class and domain; paths are relative to the file."""
    reading = Reading("manifest", root)
    rows = _read_rows(reading)
    if not rows:
        return reading
    reading.identity["sha256"] = hashlib.sha256(root.read_bytes()).hexdigest()
    missing = [path for path, _, _ in rows if not (root.parent / path).is_file()]
    if missing:
        what = f"{len(missing):,} of {len(rows):,} files are missing: {listed(missing)}"
        reading.add("error", root, what, f"paths are relative to {root.parent}")
    twice = _repeated([path for path, _, _ in rows])
    if twice:
        reading.add("note", root, f"{len(twice):,} files are named more than once: {listed(twice)}")

    reading.classes = tuple(sorted({name for _, name, _ in rows}))
    numbers = {name: number for number, name in enumerate(reading.classes)}
    found = list(dict.fromkeys(domain for _, _, domain in rows))
    for chosen in choose_domains(domains, found, found):
        own = [(path, numbers[name]) for path, name, domain in rows if domain == chosen]
        labels = np.array([label for _, label in own], dtype=np.int64)
        pictures = FilePictures(root.parent, tuple(path for path, _ in own))
        reading.domains.append(Domain(chosen, labels, pictures))
    return reading


def _read_rows(reading: Reading) -> list[tuple[str, str, str]]:
    """Path, class and domain of each line."""
    root, header = reading.root, ",".join(COLUMNS)
    remedy = f"a CSV file whose first line is {header}"
    if not root.is_file():
        reading.add("error", root, "is not a file" if root.exists() else "missing", remedy)
        return []
    rows = []
    try:
        with root.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark at the start
            table = csv.DictReader(file, strict=True)
            absent = [column for column in COLUMNS if column not in (table.fieldnames or [])]
            if absent:
                came = ",".join(table.fieldnames or []) or "nothing"
                reading.add(
                    "error", root, f"has no column {', '.join(absent)}; its first line is {came}", remedy
                )
                return []
            for row in table:
                cells = [(row[column] or "").strip() for column in COLUMNS]
                empty = [column for column, cell in zip(COLUMNS, cells, strict=True) if not cell]
                if empty:
                    reading.add("error", f"{root}, line {table.line_num}", f"has no {', '.join(empty)}")
                    continue
                rows.append((os.path.normpath(cells[0]), cells[1].replace("_", " ").strip(), cells[2]))
    except (csv.Error, UnicodeDecodeError) as error:
        reading.add("error", root, f"cannot be read: {error}", remedy)
        return []
    if not rows and not reading.errors:
        reading.add("error", root, "has no line below the first", remedy)
    return rows


def _repeated(items: list[str]) -> list[str]:
    seen: set[str] = set()
    return list(dict.fromkeys(item for item in items if item in seen or seen.add(item)))  # type: ignore[func-returns-value]
