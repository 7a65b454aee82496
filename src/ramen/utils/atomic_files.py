"""Files that exist completely or not at all."""

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
    folder.mkdir(parents=True, exist_ok=True)
    # In the same file system: only there can a file be replaced in one step.
    temporary = folder / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path | str, text: str) -> None:
    """Replace the content of ``path`` by ``text``, in UTF-8, atomically."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))
