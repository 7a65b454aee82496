"""Download released archives: resume if interrupted, check, unpack, and only then put them in place."""

import hashlib
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramen import __version__
from ramen.data.catalogue import describe, list_datasets, read
from ramen.data.corruptions import SEVERITIES
from ramen.data.reading import Archive, DataInfo, Progress, no_progress
from ramen.utils.checks import nearest
from ramen.utils.files import make_folder

_CHUNK = 1 << 20
_TIMEOUT_S = 60.0  # a server that sends nothing for this long has gone away
_ATTEMPTS = 5  # in a row without receiving a new byte


class DownloadError(OSError):
    """An archive could not be downloaded, or is not the released one."""


def download(
    name: str,
    root: str | os.PathLike[str],
    *,
    url: str | None = None,
    keep_archive: bool = False,
    progress: Progress = no_progress,
) -> Path:
    """Download and unpack a released data set; returns the folder that holds it.

    Args:
        name: ``"cifar10c"``, ``"cifar100c"`` or ``"imagenetc"``.
        root: The folder in which the folder of the data set is created.
        url: Another address of the same archive; of the folder of its archives if it has several.
        keep_archive: Keep an archive after unpacking it.
        progress: Called as the download, the check and the unpacking advance.
    """
    info = _find(name)
    root = Path(root).expanduser()
    make_folder(root)
    folder = root / info.folders[0]
    # what an archive holds gets its name only when it is complete
    left = [
        a for a in info.archives if not folder.exists() or not all((folder / p).exists() for p in a.holds)
    ]
    if not left and (errors := read(name, folder).errors):
        advice = "move it away and run the same command again"
        raise DownloadError(f"{folder} already exists, but {errors[0]}; {advice}")
    for archive in left:
        path = root / archive.file
        if not path.exists():
            # Not a temporary file: it stays when the download is interrupted, and the next run resumes it.
            part = path.with_name(f"{path.name}.part")
            several = url and len(info.archives) > 1
            fetch(f"{url}/{archive.file}" if several else url or archive.url, part, progress=progress)
            _check_md5(part, archive, progress, "it was removed; run the same command again")
            os.replace(part, path)
        else:
            _check_md5(path, archive, progress, "move it away and run the same command again")
        unpack(info, archive, path, folder, progress)
        if not keep_archive:
            path.unlink()
    return folder


def _find(name: str) -> DataInfo:
    available = [known for known in list_datasets() if describe(known).downloadable]
    if name not in available:
        other = f" Get it from {describe(name).source}." if name in list_datasets() else ""
        raise ValueError(f"name: {name!r} cannot be downloaded.{other}{nearest(name, available)}")
    return describe(name)


def _check_md5(path: Path, archive: Archive, progress: Progress, remedy: str) -> None:
    md5 = md5_of(path, "checking", progress)
    if md5 != archive.md5:
        if path.suffix == ".part":
            path.unlink()  # or the next attempt would resume after the wrong bytes
        raise DownloadError(f"{path} has the md5 {md5}, {archive.file} must have {archive.md5}; {remedy}")


def fetch(url: str, part: Path, *, progress: Progress = no_progress, pause_s: float = 1.0) -> None:
    """Download the rest of ``part``, starting at its end; reconnect if the connection is lost."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"url must begin with http:// or https://, got {url!r}")
    failures, longest = 0, _size(part)
    while True:
        try:
            if _request_rest(url, part, progress):
                return
            problem = "the connection ended early"
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"the server answered {error.code} {error.reason}"
            if error.code < 500 and error.code not in (408, 429):
                raise DownloadError(f"{url}: {problem}; try another address with url") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, DownloadError):
                raise
            problem = str(getattr(error, "reason", error)) or type(error).__name__
        # Only a new maximum counts as progress: some servers start from the beginning every time.
        failures = 1 if _size(part) > longest else failures + 1
        longest = max(longest, _size(part))
        if failures >= _ATTEMPTS:
            raise DownloadError(
                f"{url}: {problem}, {failures} times in a row; {_size(part):,} bytes are kept in {part}, "
                "and the same command resumes there"
            )
        time.sleep(pause_s * 2 ** (failures - 1))


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _request_rest(url: str, part: Path, progress: Progress) -> bool:
    """Make one request; returns whether the file is complete afterwards."""
    start = _size(part)
    # The archive must arrive as it is: if it were compressed on the way, its bytes could not be counted.
    headers = {"User-Agent": f"ramen/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not start:
            raise
        error.close()
        if error.headers.get("Content-Range", "").strip() == f"bytes */{start}":
            return True  # there is nothing after the last byte: the file is complete
        part.unlink()  # longer than the archive, so not a part of it
        return False
    with response:
        return _receive(response, part, start, progress)


def _receive(response: Any, part: Path, start: int, progress: Progress) -> bool:
    length = response.headers.get("Content-Length")
    if response.status == 206:
        sent = response.headers.get("Content-Range")
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", (sent or "").strip())
        if not span or int(span[1]) != start:
            raise DownloadError(f"{response.url}: requested the bytes from {start}, the server sent {sent!r}")
        total = int(span[2]) if span[2] != "*" else None
    else:
        start = 0  # the server sends the whole file, whatever was requested
        total = int(length) if length else None
    # the rest of the archive and its unpacked content, about as long, must fit on the disk
    free, needed = shutil.disk_usage(part.parent).free, 2 * (total or 0) - start
    if free < needed:
        what = f"but downloading and unpacking needs {needed:,}"
        raise DownloadError(f"{part.parent} has {free:,} bytes free, {what}")
    done = start
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            progress("downloading", done, total)
    return total is None or done == total


def unpack(
    info: DataInfo, archive: Archive, path: Path, folder: Path, progress: Progress = no_progress
) -> None:
    """Unpack an archive next to ``folder``, check it, and move what it holds there if it is complete."""
    tops = archive.holds or (folder.name,)
    depth = 4 if archive.holds else 2  # of files: corruption/severity/class/image, or the folder's own
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as draft:
        try:
            # "r:" accepts no compressed archive, so the content cannot be longer than the archive.
            with tarfile.open(path, "r:") as file:
                for member in file:
                    _check_member(path, member, tops, depth)
                    file.extract(member, draft, filter="data")
                    progress("unpacking", member.offset_data + member.size, path.stat().st_size)
        except (tarfile.TarError, EOFError) as error:
            raise DownloadError(f"{path} cannot be unpacked: {error}") from error
        if archive.holds:
            severities = [read(info.name, draft, severity=s, domains=list(tops)) for s in SEVERITIES]
        else:
            severities = [read(info.name, Path(draft) / folder.name)]
        for reading in severities:
            if reading.errors:
                raise DownloadError(f"{path} does not contain a complete {info.name}: {reading.errors[0]}")
        for part in archive.holds:
            make_folder(folder)
            if not (folder / part).exists():  # an interrupted run may have moved some of them
                os.replace(Path(draft) / part, folder / part)
        if not archive.holds:
            os.replace(Path(draft) / folder.name, folder)


def _check_member(path: Path, member: tarfile.TarInfo, tops: Sequence[str], depth: int) -> None:
    """Accept only the expected folders, and regular files in them where such a set has files."""
    parts = member.name.removeprefix("./").split("/")
    regular = member.isreg() and not member.issparse()
    right = len(parts) < depth if member.isdir() else regular and len(parts) == depth
    if parts[0] not in tops or ".." in parts or not right:
        what = f"it contains {member.name!r}, not a file of {', '.join(tops)}/"
        raise DownloadError(f"{path} cannot be trusted: {what}")


def md5_of(path: Path, what: str, progress: Progress = no_progress) -> str:
    """The MD5 checksum of a file; ``progress`` is called with ``what`` after every chunk."""
    digest, total = hashlib.md5(usedforsecurity=False), path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress(what, file.tell(), total)
    return digest.hexdigest()
