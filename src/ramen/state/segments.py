"""Where segments are kept, and files in a folder of this machine."""

import contextlib
import mmap
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ramen.methods._saved_state import ForeignStateError
from ramen.state.records import Buffer
from ramen.utils.files import file_lock

IS_USING = "is using this store"
_GROUP = "group"  # where groups of processes have saved their states, up to version 0.2
_NAME = re.compile(r"segment-(\d{8})\.log")


def segment_name(number: int) -> str:
    """The name of a segment's file.

    >>> segment_name(7)
    'segment-00000007.log'
    """
    return f"segment-{number:08}.log"


class Segments(ABC):
    """Numbered segments that grow at their end."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[object]:
        """Keep others away; LockedError if somebody else is there."""

    @abstractmethod
    def numbers(self) -> list[int]:
        """Of all segments, in order."""

    @abstractmethod
    def read(self, number: int) -> Buffer:
        """All of a segment, in memory that may be written to."""

    @abstractmethod
    def append(self, number: int, pieces: Sequence[memoryview]) -> None:
        """Add to the end of a segment, which may be new, and wait until it is durable.

        If that fails, nothing is left of it, or a damaged end that ``cut`` takes away.
        """

    @abstractmethod
    def cut(self, number: int, length: int) -> None:
        """Shorten a segment."""

    @abstractmethod
    def remove(self, number: int) -> None:
        """Remove a segment."""

    @abstractmethod
    def set_aside(self, number: int) -> str:
        """Keep a damaged segment under another name, and return that name."""

    @abstractmethod
    def forget_set_aside(self) -> None:
        """Remove what was set aside before."""


class LocalSegments(Segments):
    """Files in a folder."""

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"store must be a folder, got the file {folder}")
        if (folder / _GROUP).exists():
            raise ForeignStateError(
                f"store must be a folder of one process, got {folder}, where a group of processes has saved "
                f"its state: version 0.2 continues it; without {folder / _GROUP} the store starts anew"
            )
        self._folder = folder

    def lock(self) -> AbstractContextManager[object]:
        """A lock that ends with the process."""
        return file_lock(self._folder / "lock", IS_USING)

    def numbers(self) -> list[int]:
        """Of all segments, in order."""
        names = (_NAME.fullmatch(path.name) for path in self._folder.glob("segment-*.log"))
        return sorted(int(name[1]) for name in names if name)

    def read(self, number: int) -> Buffer:
        """The file, mapped; changes to it stay in memory."""
        with self._path(number).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return bytearray()
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def append(self, number: int, pieces: Sequence[memoryview]) -> None:
        """Write and wait for the disk; a part that did not fit is taken back."""
        path = self._path(number)
        is_new = not path.exists()
        with path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                for piece in pieces:
                    _write_all(file.fileno(), piece)
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    file.truncate(end)
                    if is_new:
                        path.unlink()
                raise
        if is_new:
            self._settle_folder()

    def cut(self, number: int, length: int) -> None:
        """Shorten a file, durably."""
        with self._path(number).open("r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())

    def remove(self, number: int) -> None:
        """Remove a file; if the machine stops now, it may come back, which does no harm."""
        self._path(number).unlink(missing_ok=True)

    def set_aside(self, number: int) -> str:
        """Rename a file."""
        path = self._path(number)
        aside = path.with_suffix(".damaged")
        os.replace(path, aside)
        return str(aside)

    def forget_set_aside(self) -> None:
        """Remove what was set aside before."""
        for path in self._folder.glob("segment-*.damaged"):
            path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / segment_name(number)

    def _settle_folder(self) -> None:
        """Make the disk know a new file's name."""
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_all(handle: int, piece: memoryview) -> None:
    while len(piece):
        piece = piece[os.write(handle, piece) :]
