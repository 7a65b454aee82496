"""Your own images in a table: a CSV file with the columns path, class and domain."""

import csv
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ramen.data.dataset import Domain, ImageFiles
from ramen.data.reading import DataInfo, Reading, choose_domains, first_few

_COLUMNS = ("path", "class", "domain")


def read_manifest(info: DataInfo, root: Path, domains: Sequence[str] | None = None) -> Reading:
    """Read a CSV file with the columns path, class and domain; paths are relative to the file."""
    reading = Reading(info.name, root)
    rows = _read_rows(reading)
    if not rows:
        return reading
    reading.identity["sha256"] = hashlib.sha256(root.read_bytes()).hexdigest()
    missing = [path for path, _, _ in rows if not (root.parent / path).is_file()]
    if missing:
        what = f"{len(missing):,} of {len(rows):,} files are missing: {first_few(missing)}"
        reading.add("error", root, what, f"paths are relative to {root.parent}")
    repeated = [path for path, times in Counter(path for path, _, _ in rows).items() if times > 1]
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
    root = reading.root
    remedy = f"it must be a CSV file whose first line is {','.join(_COLUMNS)}"
    if not reading.has_file(root, remedy):
        return []
    rows = []
    try:
        with root.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets add a byte order mark
            lines = csv.DictReader(file, strict=True)
            absent = [column for column in _COLUMNS if column not in (lines.fieldnames or [])]
            if absent:
                found = ",".join(lines.fieldnames or []) or "empty"
                what = f"has no column {', '.join(absent)}; its first line is {found}"
                reading.add("error", root, what, remedy)
                return []
            for row in lines:
                cells = [(row[column] or "").strip() for column in _COLUMNS]
                empty = [column for column, cell in zip(_COLUMNS, cells, strict=True) if not cell]
                if empty:
                    reading.add("error", f"{root}, line {lines.line_num}", f"has no {', '.join(empty)}")
                    continue
                rows.append((os.path.normpath(cells[0]), cells[1].replace("_", " ").strip(), cells[2]))
    except (csv.Error, UnicodeDecodeError) as error:
        reading.add("error", root, f"cannot be read: {error}", remedy)
        return []
    if not rows and not reading.errors:
        reading.add("error", root, "has no line after the first", remedy)
    return rows
