"""Which files a command line means: files, folders, patterns, and a list on standard input."""

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ramen.serve.sources import NoImage, expand

FROM_INPUT = "-"  # in place of a path: the list on standard input


@dataclass(frozen=True)
class LiteralPath(os.PathLike[str]):
    """A path that is taken as it is: not as a pattern, and not made shorter."""

    path: str

    def __fspath__(self) -> str:
        """The path."""
        return self.path


def read_list(file: IO[bytes]) -> list[LiteralPath]:
    """Paths, one per line, or each ended by a zero byte as ``find -print0`` writes them."""
    content = file.read()
    if b"\0" in content:
        names = content.split(b"\0")
    else:
        names = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    return [LiteralPath(os.fsdecode(name)) for name in names if name]


@dataclass(frozen=True)
class Photos:
    """What a command line names.

    Attributes:
        named: Paths of files and folders, and patterns.
        listed: What came on standard input.
        outside: A folder whose files do not count, also if it is inside one that was named.
    """

    named: tuple[str, ...]
    listed: tuple[LiteralPath, ...] = ()
    outside: Path | None = None

    @classmethod
    def from_arguments(
        cls, arguments: Sequence[str], file: IO[bytes], outside: Path | None = None
    ) -> "Photos":
        """Check arguments: each must be there, or match something; ``-`` stands for the list in ``file``."""
        named = tuple(argument for argument in arguments if argument != FROM_INPUT)
        for argument in named:
            if not os.path.lexists(argument) and isinstance(next(expand(argument)).value, NoImage):
                raise ValueError(
                    f"PHOTOS: there is no file or folder {argument!r}, and nothing that it matches"
                )
        listed = tuple(read_list(file)) if FROM_INPUT in arguments else ()
        return cls(named, listed, None if outside is None else Path(os.path.abspath(outside)))

    @property
    def folders(self) -> list[str]:
        """Those that can be followed."""
        return [name for name in self.named if os.path.isdir(name)]

    def find(self, done: Container[str] = ()) -> list[str]:
        """The paths of all images that are there now, each once, without those that are done."""
        found = (path for path in self._paths() if path not in done)
        return list(dict.fromkeys(found))

    def _paths(self) -> Iterator[str]:
        for source in expand([*self.named, *self.listed]):
            if isinstance(source.value, NoImage) and _is_empty_folder(source.key):
                continue
            if self.outside is None or not _is_inside(source.key, self.outside):
                yield source.key


def as_sources(paths: Iterable[str]) -> Iterator[tuple[str, LiteralPath]]:
    """Paths as sources of a predictor whose keys are exactly these paths."""
    return ((path, LiteralPath(path)) for path in paths)


def _is_empty_folder(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK)


def _is_inside(path: str, folder: Path) -> bool:
    return os.path.abspath(path).startswith(f"{folder}{os.sep}")
