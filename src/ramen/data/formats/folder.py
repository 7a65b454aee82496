"""Your own images in a folder ``domain/class/image``."""

from collections.abc import Sequence
from pathlib import Path

from ramen.data.formats.class_folders import add_domain, find_class_folders, names_from_folders, scan_domain
from ramen.data.formats.reading import Reading, choose_domains

_REMEDY = "it must hold domain/class/image"


def read_folder(root: Path, domains: Sequence[str] | None = None) -> Reading:
    """Read a folder ``domain/class/image``; the classes are those of all domains together, sorted by name."""
    reading = Reading("folder", root)
    if not reading.has_folder(root, _REMEDY):
        return reading
    found = sorted(
        entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not found:
        reading.add("error", root, "has no folder in it", _REMEDY)
        return reading
    chosen = choose_domains(domains, found, found)
    folders = find_class_folders(root / name for name in found)
    reading.classes = names_from_folders(reading, folders)
    class_indices = {folder: index for index, folder in enumerate(folders)}
    for name in chosen:
        add_domain(reading, name, root / name, scan_domain(reading, root / name), class_indices)
    return reading
