"""The data sets of DomainBed in the layout of its download script: ``domain/class/image``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ramen.data.formats.class_folders import add_domain, find_class_folders, names_from_folders, scan_domain
from ramen.data.formats.reading import Reader, Reading, choose_domains, find_root, first_few

SOURCE = "https://github.com/facebookresearch/DomainBed, domainbed/scripts/download.py"


@dataclass(frozen=True)
class _Release:
    """What the release of a data set contains."""

    title: str
    folders: tuple[str, ...]  # usual names of the folder of the data set
    domains: dict[str, int | None]  # with the number of images, if copies agree on it
    classes: int
    source: str = SOURCE


RELEASES = {
    "domainnet": _Release(
        "DomainNet",
        ("domain_net", "DomainNet", "domainnet"),
        {
            "clipart": 48_129,
            "infograph": 51_605,
            "painting": 72_266,
            "quickdraw": 172_500,
            "real": 172_947,
            "sketch": 69_128,
        },
        345,
        f"{SOURCE}, or http://ai.bu.edu/M3SDA/ (the cleaned version)",
    ),
    "pacs": _Release(
        "PACS",
        ("PACS", "pacs"),
        {"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929},
        7,
    ),
    "vlcs": _Release(
        "VLCS", ("VLCS", "vlcs"), {"Caltech101": 1_415, "LabelMe": 2_656, "SUN09": 3_282, "VOC2007": 3_376}, 5
    ),
    "officehome": _Release(
        "OfficeHome",
        ("office_home", "OfficeHome", "OfficeHomeDataset_10072016"),
        {"Art": 2_427, "Clipart": 4_365, "Product": 4_439, "Real World": 4_357},
        65,
    ),
    "terraincognita": _Release(
        "TerraIncognita",
        ("terra_incognita", "TerraIncognita"),
        {"location_100": None, "location_38": None, "location_43": None, "location_46": None},
        10,
    ),
}


def _read(name: str, root: Path, domains: Sequence[str] | None = None) -> Reading:
    release = RELEASES[name]
    chosen = choose_domains(domains, tuple(release.domains), tuple(release.domains))
    spellings = [spelling for domain in release.domains for spelling in _spellings(domain)]
    root = find_root(root, release.folders, spellings)
    reading = Reading(name, root)
    remedy = f"get it from {release.source}"
    places = {domain: _find_domain(root, domain) for domain in release.domains}
    folders = find_class_folders(places.values())
    if folders and len(folders) != release.classes:
        what = f"{release.title} has {release.classes} classes, but there are {len(folders)} class folders"
        what += _unusual(folders, [place for place in places.values() if place.is_dir()])
        reading.add("error", root, what, remedy)
    reading.classes = names_from_folders(reading, folders)
    class_indices = {folder: index for index, folder in enumerate(folders)}
    for domain in chosen:
        files = scan_domain(reading, places[domain], remedy)
        add_domain(reading, domain, places[domain], files, class_indices)
        count = sum(map(len, files.values()))
        _check_count(reading, places[domain], count, release.domains[domain], remedy)
    return reading


def _unusual(folders: list[str], places: list[Path]) -> str:
    """Name the class folders that most domains do not have: they are probably not classes of the release."""
    odd = [
        folder for folder in folders if sum((place / folder).is_dir() for place in places) * 2 < len(places)
    ]
    return f"; few domains have {first_few(map(repr, odd))}" if odd else ""


def _check_count(reading: Reading, place: Path, count: int, released: int | None, remedy: str) -> None:
    if count and released and count != released:
        what = f"has {count:,} images, the released domain {released:,}: {abs(count - released):,} "
        reading.add("difference", place, what + ("missing" if count < released else "too many"), remedy)


def _spellings(domain: str) -> tuple[str, ...]:
    """Copies write the space differently: "Real World", "Real_World", "RealWorld"."""
    return (domain, domain.replace(" ", "_"), domain.replace(" ", "")) if " " in domain else (domain,)


def _find_domain(root: Path, domain: str) -> Path:
    return next((root / s for s in _spellings(domain) if (root / s).is_dir()), root / domain)


def reader(name: str) -> Reader:
    """The function that reads the data set of that name."""
    return partial(_read, name)
