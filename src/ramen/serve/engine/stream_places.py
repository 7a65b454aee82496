"""Where the streams of an engine are stored: a folder of this machine, or a URL that fsspec reaches."""

import resource
import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from ramen.serve.engine.errors import BadRequestError
from ramen.serve.engine.names import check_stream_name
from ramen.serve.store.state_store import open_filesystem
from ramen.utils.atomic_files import atomic_write, make_folder

_STREAMS = "streams"
_FACTS = "stream.json"
_MOST_OPEN = 4096  # each has a file for its lock
_MOST_LEASES = 256  # each has a thread that renews it


def open_places(state: str | None) -> "StreamPlaces":
    """The places below a folder or URL; below a temporary folder if there is none."""
    if state is None:
        return LocalPlaces(Path(tempfile.mkdtemp(prefix="ramen-streams-")), temporary=True)
    if "://" in state:
        return RemotePlaces(state)
    return LocalPlaces(Path(state).expanduser())


class StreamPlaces(ABC):
    """One folder per stream, with the state of its method and its facts.

    Attributes:
        most_open: How many stores may be open at a time.
        shared: Whether other processes may use the place too.
    """

    most_open: int
    shared: bool

    @abstractmethod
    def names(self) -> list[str]:
        """Of all streams."""

    @abstractmethod
    def location(self, name: str) -> str:
        """Where the store of a stream is."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The facts of a stream; None if there is no such stream."""

    @abstractmethod
    def write(self, name: str, facts: bytes, *, durable: bool) -> None:
        """Replace the facts of a stream, completely or not at all.

        Args:
            name: Of the stream.
            facts: The new ones.
            durable: Whether they must survive a power cut, for which the disk takes its time.
        """

    @abstractmethod
    def remove_state(self, name: str) -> None:
        """Remove all of a stream but its facts."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a stream."""

    def close(self) -> None:  # noqa: B027 - most places stay
        """Nothing more is read or written."""


class LocalPlaces(StreamPlaces):
    """Folders of this machine.

    Args:
        folder: Created if it is missing.
        temporary: Whether ``close`` removes it.
    """

    def __init__(self, folder: Path, *, temporary: bool = False) -> None:
        self._root, self._folder, self._temporary = folder, folder / _STREAMS, temporary
        make_folder(self._folder)
        self.most_open = min(_MOST_OPEN, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self.shared = not temporary

    def names(self) -> list[str]:
        """Folders with a stream's name."""
        return [path.name for path in self._folder.iterdir() if _is_name(path.name)]

    def location(self, name: str) -> str:
        """A folder."""
        return str(self._folder / name)

    def read(self, name: str) -> bytes | None:
        """From a file."""
        try:
            return (self._folder / name / _FACTS).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, facts: bytes, *, durable: bool) -> None:
        """To a file that replaces the old one."""
        with atomic_write(self._folder / name / _FACTS, durable=durable) as file:
            file.write(facts)

    def remove_state(self, name: str) -> None:
        """The files beside the facts; there are no folders."""
        for path in (self._folder / name).iterdir():
            if path.name != _FACTS:
                path.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """The folder, with all that is in it."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def close(self) -> None:
        """Remove a temporary folder."""
        if self._temporary:
            shutil.rmtree(self._root, ignore_errors=True)


class RemotePlaces(StreamPlaces):
    """Objects below a URL; an object is replaced as a whole."""

    most_open = _MOST_LEASES
    shared = True

    def __init__(self, url: str) -> None:
        self._url = f"{url.rstrip('/')}/{_STREAMS}"
        self._files: Any
        self._files, self._path = open_filesystem(self._url)

    def names(self) -> list[str]:
        """Folders with a stream's name."""
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        names = (str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths)
        return [name for name in names if _is_name(name)]

    def location(self, name: str) -> str:
        """A URL."""
        return f"{self._url}/{name}"

    def read(self, name: str) -> bytes | None:
        """From an object."""
        try:
            return bytes(self._files.cat_file(f"{self._path}/{name}/{_FACTS}"))
        except FileNotFoundError:
            return None

    def write(self, name: str, facts: bytes, *, durable: bool) -> None:
        """To an object, which always is durable."""
        self._files.makedirs(f"{self._path}/{name}", exist_ok=True)
        self._files.pipe_file(f"{self._path}/{name}/{_FACTS}", facts)

    def remove_state(self, name: str) -> None:
        """The objects beside the facts."""
        self._files.invalidate_cache()
        for path in self._files.ls(f"{self._path}/{name}", detail=False):
            if not str(path).endswith(f"/{_FACTS}"):
                self._files.rm(path, recursive=True)

    def remove(self, name: str) -> None:
        """All objects of the stream."""
        if self._files.exists(f"{self._path}/{name}"):
            self._files.rm(f"{self._path}/{name}", recursive=True)


def _is_name(name: str) -> bool:
    try:
        check_stream_name(name)
    except BadRequestError:
        return False
    return True
