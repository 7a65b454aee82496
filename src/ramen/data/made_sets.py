"""Sets that ``ramen data make`` made: what they have of the corruptions, and whether that is whole."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramen.data import archives
from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES
from ramen.data.formats import imagenet_c
from ramen.data.formats.reading import RECORD_FILE, UNFINISHED, Reading

_ALL = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
_USUAL_SEVERITY = 5
_FOLDERS = {
    "cifar10c": (Path(archives.CIFAR10C.file).stem,),
    "cifar100c": (Path(archives.CIFAR100C.file).stem,),
    "imagenetc": imagenet_c.FOLDERS,
}


@dataclass(frozen=True)
class MadeSet:
    """What a made set has.

    Attributes:
        root: Its folder.
        corruptions: The corruptions that are there, by severity; severities without any are left out.
    """

    root: Path
    corruptions: Mapping[int, tuple[str, ...]]

    def choose(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options to verify it with: what was given, and otherwise what is there."""
        options = dict(given)
        severity = options.get("severity", _USUAL_SEVERITY)
        if "severity" not in options and severity not in self.corruptions:
            severity = options["severity"] = max(self.corruptions)
        there = self.corruptions.get(severity, ())
        if "domains" not in options and there:
            options["domains"] = [name for name in there if name in CORRUPTIONS] or list(there)
        return options

    def report(self, reading: Reading, given: Mapping[str, Any]) -> None:
        """Add to ``reading`` what the set has and has not, and what is not whole."""
        if (self.root / UNFINISHED).exists():
            reading.add(
                "error",
                self.root,
                "making it was interrupted, or is still going on",
                "run the same `ramen data make` again: it resumes",
            )
        source = reading.identity.get("made", {}).get("source", {}).get("images")
        expected = source[0] if isinstance(source, list) else source
        for domain in reading.domains:
            if expected is not None and len(domain) != expected:
                what = f"has {len(domain):,} images, and was made from {expected:,}"
                reading.add("error", self.root / domain.name, what, "remove it and make it again")
        if "severity" not in given:
            self._note(reading, "severities", sorted(self.corruptions), SEVERITIES)
        if "domains" not in given:
            there = self.corruptions.get(reading.identity["severity"], ())
            self._note(reading, "corruptions", [name for name in CORRUPTIONS if name in there], CORRUPTIONS)

    def _note(self, reading: Reading, what: str, has: Sequence[object], everything: Sequence[object]) -> None:
        all_of_them = list(everything)
        if has == all_of_them:
            return
        missing = [one for one in all_of_them if one not in has]
        option = "--severity" if what == "severities" else "--domain"
        reading.add(
            "note",
            self.root,
            f"was made with {len(has)} of {len(all_of_them)} {what}: {_listed(has) or 'none of these'}; "
            f"not there: {_listed(missing)}",
            f"run it with {' '.join(f'{option} {one}' for one in has)}" if has else "",
        )


def find_made_set(name: str, root: Path) -> MadeSet | None:
    """The set in ``root`` if ``ramen data make`` made it and it has anything; None otherwise.

    Args:
        name: The data set.
        root: The folder with the files, or its parent.
    """
    for folder in (root, *(root / usual for usual in _FOLDERS.get(name, ()))):
        if name in _FOLDERS and (folder / RECORD_FILE).is_file():
            layout = _imagenet_c if name == "imagenetc" else _cifar_c
            found = {severity: layout(folder, severity) for severity in SEVERITIES}
            there = {severity: names for severity, names in found.items() if names}
            return MadeSet(folder, there) if there else None
    return None


def _cifar_c(root: Path, severity: int) -> tuple[str, ...]:
    """Corruptions whose array is there; all severities are in one file, or each has its folder."""
    alone = root / f"severity_{severity}"
    folder = root if (root / "labels.npy").exists() else alone
    return tuple(name for name in _ALL if (folder / f"{name}.npy").is_file())


def _imagenet_c(root: Path, severity: int) -> tuple[str, ...]:
    return tuple(name for name in _ALL if (root / name / str(severity)).is_dir())


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
