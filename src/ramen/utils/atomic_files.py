"""Files that exist completely or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_write(
    path: Path | str, *, staging: Path | None = None, durable: bool = True
) -> Iterator[IO[bytes]]:
    """A binary file that takes the name ``path`` once the block has ended well.

    Whoever reads ``path`` meanwhile finds the old file or the new one. If the block fails, the old file stays
    and nothing else is left behind.

    Args:
        path: The file; missing parent folders are created.
        staging: Folder on the same file system in which the file is written; its own folder by default.
        durable: Wait until the disk has the content, so that a power cut cannot leave an empty file.
    """
    path = Path(path)
    folder = path.parent if staging is None else staging
    make_folder(folder)
    # In the same file system: only there can a file be replaced in one step.
    temporary = folder / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        # A failed write names no file, the others name a file that nobody has heard of.
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they are missing; an error says if one of them is a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(one for one in (folder, *folder.parents) if one.exists())
        raise NotADirectoryError(
            errno.ENOTDIR, "this is a file, and a folder is expected", str(file)
        ) from None


def write_text(path: Path | str, text: str) -> None:
    """Replace the content of ``path`` by ``text``, in UTF-8, atomically."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))
