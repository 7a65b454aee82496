"""Check the files of a data set and report exactly what is wrong with them."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ramen.data.archives import Progress, md5_of, no_progress
from ramen.data.formats.reading import DataFinding, Reading
from ramen.data.formats.stored_images import ImageFiles
from ramen.data.made_sets import find_made_set
from ramen.data.registry import describe, read

_FILES_PER_CHUNK = 1024


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
    made = find_made_set(name, Path(root).expanduser())
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
    from ramen.images.image_inputs import open_rgb  # loads torch

    try:
        open_rgb(path)
    except (ValueError, OSError) as error:
        return str(error).removeprefix(f"{path} ")
    return ""
