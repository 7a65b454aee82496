"""Check the files of a data set and report exactly what is wrong with them."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ramen.data.catalogue import describe, read
from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES
from ramen.data.dataset import ImageFiles
from ramen.data.downloads import md5_of
from ramen.data.reading import (
    RECORD_FILE,
    UNFINISHED,
    DataFinding,
    DataInfo,
    Progress,
    Reading,
    no_progress,
)

_FILES_PER_CHUNK = 1024
_USUAL_SEVERITY = 5


@dataclass(frozen=True)
class Verification:
    """What verifying a data set found."""

    name: str
    root: Path
    classes: int
    domains: dict[str, int]  # number of images in each
    identity: dict[str, Any]
    findings: tuple[DataFinding, ...]
    deep: bool

    @property
    def ok(self) -> bool:
        """Whether the files match the release, or are a complete data set of your own."""
        return all(finding.level == "note" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        findings = [asdict(finding) for finding in self.findings]
        return {"ok": self.ok, **asdict(self), "root": str(self.root), "findings": findings}


def verify(
    name: str,
    root: str | os.PathLike[str],
    *,
    deep: bool = False,
    progress: Progress = no_progress,
    **options: Any,
) -> Verification:
    """Check counts, shapes, dtypes and labels, and the checksums of archives stored next to the data.

    A set that was made here may have a part of the corruptions and severities: what is there is checked, and
    a note says what is not.

    Args:
        name: The data set.
        root: The folder or file that holds it.
        deep: Also decode every image file.
        progress: Called as the long parts advance.
        **options: The same as for ``load``; what they name must be there.
    """
    made = _find_made_set(describe(name), Path(root).expanduser())
    reading = read(name, root, **(options if made is None else made.choose(options)))
    if made is not None:
        made.report(reading, options)
    _check_archives(reading, progress)
    if deep:
        _check_images(reading, progress)
    return Verification(
        name,
        reading.root,
        len(reading.classes),
        {domain.name: len(domain) for domain in reading.domains},
        reading.identity,
        tuple(reading.findings),
        deep,
    )


def _check_archives(reading: Reading, progress: Progress) -> None:
    for archive in describe(reading.name).archives:
        for path in (reading.root / archive.file, reading.root.parent / archive.file):
            if not path.is_file():
                continue
            md5 = md5_of(path, f"md5 of {archive.file}", progress)
            if md5 != archive.md5:
                what = f"has the md5 {md5}, the released archive has {archive.md5}"
                reading.add("difference", path, what, f"download it again from {archive.url}")
            else:
                reading.add("note", path, "has the checksum of the released archive")


def _check_images(reading: Reading, progress: Progress) -> None:
    total, done = sum(map(len, reading.domains)), 0
    with ThreadPoolExecutor() as pool:
        for domain in reading.domains:
            if not isinstance(domain.images, ImageFiles):
                continue  # an array of bytes needs no decoding
            paths = iter(domain.images.read(range(len(domain))))
            while chunk := list(islice(paths, _FILES_PER_CHUNK)):
                for path, error in zip(chunk, pool.map(_decoding_error, chunk), strict=True):
                    if error:
                        reading.add("error", path, error, "replace this file or remove it")
                done += len(chunk)
                progress("images decoded", done, total)


def _decoding_error(path: Path) -> str:
    """Why a file cannot be decoded; empty if it can."""
    from ramen.images.preprocess import open_rgb  # loads torch

    try:
        open_rgb(path)
    except (ValueError, OSError) as error:
        return str(error).removeprefix(f"{path} ")
    return ""


@dataclass(frozen=True)
class _MadeSet:
    """What a set has that ``ramen data make`` made: its corruptions by severity, if it has any of one."""

    root: Path
    corruptions: Mapping[int, tuple[str, ...]]

    def choose(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options to verify it with: what was given, and otherwise what is there."""
        usual = _USUAL_SEVERITY if _USUAL_SEVERITY in self.corruptions else max(self.corruptions)
        options = {"severity": usual, **given}
        if there := self.corruptions.get(options["severity"], ()):
            options.setdefault("domains", [name for name in CORRUPTIONS if name in there] or list(there))
        return options

    def report(self, reading: Reading, given: Mapping[str, Any]) -> None:
        """Add to ``reading`` what the set has and has not, and what is not whole."""
        if (self.root / UNFINISHED).exists():
            what = "making it was interrupted, or is still going on"
            reading.add("error", self.root, what, "run the same `ramen data make` again: it resumes")
        source = reading.identity.get("made", {}).get("source", {}).get("images")
        expected = source[0] if isinstance(source, list) else source
        for domain in reading.domains:
            if expected is not None and len(domain) != expected:
                what = f"has {len(domain):,} images, and was made from {expected:,}"
                reading.add("error", self.root / domain.name, what, "remove it and make it again")
        there = self.corruptions.get(reading.identity["severity"], ())
        if "severity" not in given:
            self._report_part(reading, "severities", "--severity", list(self.corruptions), SEVERITIES)
        if "domains" not in given:
            has = [name for name in CORRUPTIONS if name in there]
            self._report_part(reading, "corruptions", "--domain", has, CORRUPTIONS)

    def _report_part(
        self, reading: Reading, what: str, option: str, has: Sequence[object], everything: Sequence[object]
    ) -> None:
        if missing := ", ".join(str(one) for one in everything if one not in has):
            listed = f"{', '.join(map(str, has)) or 'none of these'}; not there: {missing}"
            run = f"run it with {' '.join(f'{option} {one}' for one in has)}" if has else ""
            text = f"was made with {len(has)} of {len(everything)} {what}: {listed}"
            reading.add("note", self.root, text, run)


def _find_made_set(info: DataInfo, root: Path) -> _MadeSet | None:
    """The set in ``root`` or a usual folder in it, if it was made here and has anything."""
    if "severity" not in info.options or "image_list" in info.options:
        return None
    for folder in (root, *(root / usual for usual in info.folders)):
        if (folder / RECORD_FILE).is_file():
            found = {severity: _corruptions(info, folder, severity) for severity in SEVERITIES}
            there = {severity: names for severity, names in found.items() if names}
            return _MadeSet(folder, there) if there else None
    return None


def _corruptions(info: DataInfo, root: Path, severity: int) -> tuple[str, ...]:
    names = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
    if info.class_names:  # arrays: all severities are in one file, or each has its folder
        folder = root if (root / "labels.npy").exists() else root / f"severity_{severity}"
        return tuple(name for name in names if (folder / f"{name}.npy").is_file())
    return tuple(name for name in names if (root / name / str(severity)).is_dir())
