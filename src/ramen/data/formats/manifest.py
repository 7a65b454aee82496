"""Your own images in a table: a CSV file with the columns path, class and domain."""

import csv
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ramen.data.dataset import Domain
from ramen.data.formats.reading import Reading, choose_domains, first_few
from ramen.data.formats.stored_images import ImageFiles

COLUMNS = ("path", "class", "domain")


def read_manifest(root: Path, domains: Sequence[str] | None = None) -> Reading:
    """Read a CSV file with the columns path, class and domain; paths are relative to the file."""
    reading = Reading("manifest", root)
    rows = _read_rows(reading)
    if not rows:
        return reading
    reading.identity["sha256"] = hashlib.sha256(root.read_bytes()).hexdigest()
    missing = [path for path, _, _ in rows if not (root.parent / path).is_file()]
    if missing:
        what = f"{len(missing):,} of {len(rows):,} files are missing: {first_few(missing)}"
        reading.add("error", root, what, f"paths are relative to {root.parent}")
    repeated = _repeated([path for path, _, _ in rows])
    if repeated:
        what = f"{len(repeated):,} files are named more than once: {first_few(repeated)}"
        reading.add("note", root, what)

    reading.classes = tuple(sorted({name for _, name, _ in rows}))
    class_indices = {name: index for index, name in enumerate(reading.classes)}
    found = list(dict.fromkeys(domain for _, _, domain in rows))
    for chosen in choose_domains(domains, found, found):
        own = [(path, class_indices[name]) for path, name, domain in rows if domain == chosen]
        labels = np.array([label for _, label in own], dtype=np.int64)
        images = ImageFiles(root.parent, tuple(path for path, _ in own))
        reading.domains.append(Domain(chosen, labels, images))
    return reading


def _read_rows(reading: Reading) -> list[tuple[str, str, str]]:
    """Path, class and domain of each line."""
    root, header = reading.root, ",".join(COLUMNS)
    remedy = f"it must be a CSV file whose first line is {header}"
    if not reading.has_file(root, remedy):
        return []
    rows = []
    try:
        with root.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets add a byte order mark
            table = csv.DictReader(file, strict=True)
            absent = [column for column in COLUMNS if column not in (table.fieldnames or [])]
            if absent:
                found = ",".join(table.fieldnames or []) or "empty"
                what = f"has no column {', '.join(absent)}; its first line is {found}"
                reading.add("error", root, what, remedy)
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
        reading.add("error", root, "has no line after the first", remedy)
    return rows


def _repeated(items: list[str]) -> list[str]:
    seen: set[str] = set()
    return list(dict.fromkeys(item for item in items if item in seen or seen.add(item)))  # type: ignore[func-returns-value]
