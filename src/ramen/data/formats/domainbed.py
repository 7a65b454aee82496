"""The data sets of DomainBed, as its download script lays them out: ``domain/class/image``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ramen.data.formats.class_folders import add_domain, class_folders, class_names, scan
from ramen.data.formats.reading import Reader, Reading, choose_domains, find_root, listed

SOURCE = "https://github.com/facebookresearch/DomainBed, domainbed/scripts/download.py"


@dataclass(frozen=True)
class _Release:
    """What a data set's release holds."""

    title: str
    folders: tuple[str, ...]  # what the data set's own folder is called
    domains: dict[str, int | None]  # with the number of pictures, where copies agree on it
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
    places = {domain: _place(root, domain) for domain in release.domains}
    folders = class_folders(places.values())
    if folders and len(folders) != release.classes:
        what = f"{release.title} has {release.classes} classes, the domains here {len(folders)} class folders"
        reading.add(
            "error", root, what + _suspects(folders, [p for p in places.values() if p.is_dir()]), remedy
        )
    reading.classes = class_names(reading, folders)
    numbers = {folder: number for number, folder in enumerate(folders)}
    for domain in chosen:
        content = scan(reading, places[domain], remedy)
        add_domain(reading, domain, places[domain], content, numbers)
        came = sum(map(len, content.values()))
        _check_count(reading, places[domain], came, release.domains[domain], remedy)
    return reading


def _suspects(folders: list[str], places: list[Path]) -> str:
    """Class folders that most domains do not have: hardly classes of the release."""
    odd = [
        folder for folder in folders if sum((place / folder).is_dir() for place in places) * 2 < len(places)
    ]
    return f"; few domains have {listed(map(repr, odd))}" if odd else ""


def _check_count(reading: Reading, place: Path, came: int, released: int | None, remedy: str) -> None:
    if came and released and came != released:
        what = f"has {came:,} images, the released domain {released:,}: {abs(came - released):,} "
        reading.add("difference", place, what + ("missing" if came < released else "too many"), remedy)


def _spellings(domain: str) -> tuple[str, ...]:
    """Copies differ in what stands for the space: "Real World", "Real_World", "RealWorld"."""
    return (domain, domain.replace(" ", "_"), domain.replace(" ", "")) if " " in domain else (domain,)


def _place(root: Path, domain: str) -> Path:
    return next((root / s for s in _spellings(domain) if (root / s).is_dir()), root / domain)


def reader(name: str) -> Reader:
    """What reads the data set of that name."""
    return partial(_read, name)
