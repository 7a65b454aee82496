"""Check a data set's files and say exactly what is wrong with them."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ramen.data.archives import md5_of
from ramen.data.formats.reading import Finding, Reading
from ramen.data.formats.stored_images import FilePictures
from ramen.data.registry import describe, read
from ramen.images.preprocess import open_image

Advance = Callable[[str, int, int], object]  # what is done, how much of it, of how much

_AT_A_TIME = 1024


@dataclass(frozen=True)
class Verification:
    """What verifying found."""

    name: str
    root: Path
    classes: int
    domains: dict[str, int]  # pictures in each
    identity: dict[str, Any]
    findings: tuple[Finding, ...]
    deep: bool

    @property
    def ok(self) -> bool:
        """Whether the files are those of the release, or a sound data set of one's own."""
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
    advance: Advance = lambda what, done, total: None,
    **options: Any,
) -> Verification:
    """Check counts, shapes, types, labels and the checksums of archives that lie beside the data.

    Args:
        name: The data set.
        root: Where it is.
        deep: Also decode every image file.
        advance: Hears how far the long parts are.
        **options: As ``load`` has them.
    """
    reading = read(name, root, **options)
    _check_archives(reading, advance)
    if deep:
        _check_images(reading, advance)
    return Verification(
        name,
        reading.root,
        len(reading.classes),
        {domain.name: len(domain) for domain in reading.domains},
        reading.identity,
        tuple(reading.findings),
        deep,
    )


def _check_archives(reading: Reading, advance: Advance) -> None:
    for archive in describe(reading.name).archives:
        for path in (reading.root / archive.file, reading.root.parent / archive.file):
            if not path.is_file():
                continue
            done, total = 0, path.stat().st_size

            def step(count: int, file: str = archive.file, total: int = total) -> None:
                nonlocal done
                done += count
                advance(f"md5 of {file}", done, total)

            came = md5_of(path, step)
            if came != archive.md5:
                what = f"has the md5 {came}, the released archive {archive.md5}"
                reading.add("difference", path, what, f"get it again from {archive.url}")
            else:
                reading.add("note", path, "has the checksum of the released archive")


def _check_images(reading: Reading, advance: Advance) -> None:
    total, done = sum(map(len, reading.domains)), 0
    with ThreadPoolExecutor() as pool:
        for domain in reading.domains:
            if not isinstance(domain.pictures, FilePictures):
                continue  # an array of bytes has nothing to decode
            paths = iter(domain.pictures.read(range(len(domain))))
            while some := list(islice(paths, _AT_A_TIME)):
                for finding in _damaged(pool.map(_damage, some), some):
                    reading.findings.append(finding)
                done += len(some)
                advance("images decoded", done, total)


def _damaged(messages: Iterator[str], paths: list[Path]) -> Iterator[Finding]:
    for path, message in zip(paths, messages, strict=True):
        if message:
            yield Finding("error", str(path), message, "get this file again, or remove it")


def _damage(path: Path) -> str:
    """What keeps a file from being decoded; nothing for a sound one."""
    try:
        open_image(path)
    except (ValueError, OSError) as error:
        return str(error).removeprefix(f"{path} ")
    return ""
