"""Fetch a released archive: resumed where it broke off, checked, unpacked, and only then put in place."""

import http.client
import os
import re
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ramen import __version__
from ramen.data.archives import Archive, md5_of
from ramen.data.registry import describe, list_datasets, read
from ramen.utils.checks import nearest

Advance = Callable[[str, int, int | None], object]  # what is done, how much of it, of how much if known

_CHUNK = 1 << 18
_SILENT_S = 60.0  # a server that sends nothing for so long is gone
_ATTEMPTS = 5  # in a row, without a byte more


class DownloadError(OSError):
    """An archive could not be fetched, or is not the released one."""


def download(
    name: str,
    root: str | os.PathLike[str],
    *,
    url: str | None = None,
    keep_archive: bool = False,
    advance: Advance = lambda what, done, total: None,
) -> Path:
    """Fetch and unpack a released data set; the folder that holds it.

    Args:
        name: ``"cifar10c"`` or ``"cifar100c"``.
        root: The folder to put its folder in.
        url: Another place that has the same archive.
        keep_archive: Leave the archive there when it is unpacked.
        advance: Hears how far it is.
    """
    archive = _archive(name)
    root = Path(root).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    folder = root / Path(archive.file).stem
    if folder.exists():
        _check_existing(name, folder)
        return folder
    path = root / archive.file
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        fetch(url or archive.url, part, advance=advance)
        _check_md5(part, archive, advance, "it is removed; run the same again")
        os.replace(part, path)
    else:
        _check_md5(path, archive, advance, "move it away and run the same again")
    unpack(name, path, folder, advance)
    if not keep_archive:
        path.unlink()
    return folder


def _archive(name: str) -> Archive:
    available = [known for known in list_datasets() if describe(known).downloadable]
    if name not in available:
        other = f" Get it from {describe(name).source}." if name in list_datasets() else ""
        raise ValueError(f"name: {name!r} cannot be downloaded.{other}{nearest(name, available)}")
    return describe(name).archives[0]


def _check_existing(name: str, folder: Path) -> None:
    errors = read(name, folder).errors
    if errors:
        raise DownloadError(
            f"{folder} is there already, but {errors[0]}; move it away and run the same again"
        )


def _check_md5(path: Path, archive: Archive, advance: Advance, remedy: str) -> None:
    done, total = 0, path.stat().st_size

    def step(count: int) -> None:
        nonlocal done
        done += count
        advance("checking", done, total)

    came = md5_of(path, step)
    if came != archive.md5:
        if path.suffix == ".part":
            path.unlink()  # or the next attempt would go on from the wrong bytes
        raise DownloadError(f"{path} has the md5 {came}, {archive.file} must have {archive.md5}; {remedy}")


def fetch(
    url: str, part: Path, *, advance: Advance = lambda what, done, total: None, pause_s: float = 1.0
) -> None:
    """Bring ``part`` to its full length, from where it ends; connections that break are taken up again."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"url must begin with http:// or https://, got {url!r}")
    failures, longest = 0, _size(part)
    while True:
        try:
            if _fetch_on(url, part, advance):
                return
            problem = "the connection ended early"
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"the server answered {error.code} {error.reason}"
            if error.code < 500 and error.code not in (408, 429):
                raise DownloadError(f"{url}: {problem}; another address may be given as url") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, DownloadError):
                raise
            problem = str(getattr(error, "reason", error)) or type(error).__name__
        # only more than ever before counts, or a server that always begins anew would never be given up
        failures = 1 if _size(part) > longest else failures + 1
        longest = max(longest, _size(part))
        if failures >= _ATTEMPTS:
            raise DownloadError(
                f"{url}: {problem}, {failures} times in a row; {_size(part):,} bytes are kept in {part}, "
                "and the same command goes on from there"
            )
        time.sleep(pause_s * 2 ** (failures - 1))


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _fetch_on(url: str, part: Path, advance: Advance) -> bool:
    """One request; whether the file is complete afterwards."""
    start = _size(part)
    # an archive must come as it is: compressed on the way, its bytes could not be counted
    headers = {"User-Agent": f"ramen/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_SILENT_S)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not start:
            raise
        error.close()
        total = _total(error.headers.get("Content-Range", ""))
        if total == start:
            return True  # nothing after the last byte: it is all there
        part.unlink()  # longer than the file: not a part of it
        return False
    with answer:
        return _receive(answer, part, start, advance)


def _receive(answer: Any, part: Path, start: int, advance: Advance) -> bool:
    length = answer.headers.get("Content-Length")
    if answer.status == 206:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
        if not span or int(span[1]) != start:
            came = answer.headers.get("Content-Range")
            raise DownloadError(
                f"{answer.url}: asked for the bytes from {start} on, the server sent {came!r}"
            )
        total = int(span[2]) if span[2] != "*" else None
    else:
        start = 0  # the server sends all of it, whatever was asked for
        total = int(length) if length else None
    if total is not None:
        _check_space(part, total, start)
    done = start
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            advance("fetching", done, total)
    return total is None or done == total


def _total(content_range: str) -> int | None:
    match = re.fullmatch(r"bytes \*/(\d+)", content_range.strip())
    return int(match[1]) if match else None


def _check_space(part: Path, total: int, start: int) -> None:
    """Room for the rest of the archive and for what is in it, which is about as long."""
    needed, free = 2 * total - start, shutil.disk_usage(part.parent).free
    if free < needed:
        raise DownloadError(f"{part.parent} has {free:,} bytes free, fetching and unpacking takes {needed:,}")


def unpack(
    name: str,
    path: Path,
    folder: Path,
    advance: Advance = lambda what, done, total: None,
) -> None:
    """Unpack an archive beside ``folder``, look at it, and rename it to ``folder`` when it is sound."""
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as draft:
        try:
            # "r:" takes no compressed archive: what comes out is no longer than what went in
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    _check_member(path, member, folder.name)
                    archive.extract(member, draft, filter="data")
                    advance("unpacking", member.offset_data + member.size, path.stat().st_size)
        except (tarfile.TarError, EOFError) as error:
            raise DownloadError(f"{path} cannot be unpacked: {error}") from error
        errors = read(name, Path(draft) / folder.name).errors
        if errors:
            raise DownloadError(f"{path} does not hold a sound {name}: {errors[0]}")
        os.replace(Path(draft) / folder.name, folder)


def _check_member(path: Path, member: tarfile.TarInfo, folder: str) -> None:
    """Only the folder itself and plain files directly in it belong to such an archive."""
    parts = member.name.removeprefix("./").split("/")
    sound = (
        (member.isdir() and parts == [folder])
        or (member.isreg() and not member.issparse() and len(parts) == 2 and parts[0] == folder)
    ) and ".." not in parts
    if not sound:
        raise DownloadError(f"{path} is not to be trusted: it holds {member.name!r}, not a file of {folder}/")
