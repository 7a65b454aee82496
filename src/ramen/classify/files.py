"""Files of ``ramen classify``: those that a command line means, those that arrive, folders of classes."""

import filecmp
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Event
from typing import IO

from ramen.client.result import Result
from ramen.images.file_checks import SUFFIXES_BY_FORMAT, has_suffix_of
from ramen.predict.sources import SUFFIXES, NoImage, expand

FROM_INPUT = "-"  # in place of a path: the list on standard input
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_SURROGATES = re.compile("[\udc80-\udcff]+")
_UNSAFE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')  # what some system does not allow in a name
_LONGEST = 200  # bytes in a folder's name; file systems allow 255, and a number may follow
_FileState = tuple[int, int]  # time of the last modification in nanoseconds, size


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
    """What a command line names."""

    named: tuple[str, ...]  # paths of files and folders, and patterns
    listed: tuple[LiteralPath, ...] = ()  # read from standard input
    outside: Path | None = None  # a folder whose files do not count, also if it is inside one that was named

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

    def left_out(self) -> str:
        """How many files in the named folders are no images, by their suffixes: "12 .mov, 1 .txt"."""
        found: Counter[str] = Counter()
        for folder in self.folders:
            for _, inside, names in os.walk(folder):
                inside[:] = [name for name in inside if not name.startswith(".")]
                visible = (name for name in names if not name.startswith("."))
                others = (name for name in visible if not has_suffix_of(name, SUFFIXES_BY_FORMAT))
                found.update(os.path.splitext(name)[1].lower() or "without a suffix" for name in others)
        return ", ".join(f"{count:,} {suffix}" for suffix, count in found.most_common())

    def check_some(self) -> None:
        """ValueError if there is no image, but other files."""
        if next(self._paths(), None) is None and (others := self.left_out()):
            raise ValueError(f"PHOTOS: no images, but other files: {others}. Images are named {SUFFIXES}")

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


# -- files that arrive ------------------------------------------------------------------------------------


def follow(look: Callable[[], Iterable[str]], interval: float, stop: Event) -> Iterator[str]:
    """New files as they become complete, until ``stop`` is set.

    A file is complete if its size and time stay the same from one look to the next, or if it was not changed
    for an interval when it is first seen: it was there before, or was moved here. An empty file is never
    complete. Files that are complete at the same look come in the order of their times, then of their names.

    Args:
        look: Returns the paths that are there now; those that were taken before may be left out.
        interval: Seconds from one look to the next.
        stop: Ends it.
    """
    taken: set[str] = set()
    growing: dict[str, _FileState] = {}
    while not stop.is_set():
        before = time.time_ns() - int(interval * 1e9)
        states = {path: state for path in look() if path not in taken and (state := _file_state(path))}
        complete = {path for path, state in states.items() if growing.get(path) == state or state[0] < before}
        growing = {path: state for path, state in states.items() if path not in complete}
        for path in sorted(complete, key=lambda path: (states[path][0], path)):
            if stop.is_set():
                return
            taken.add(path)
            yield path
        stop.wait(interval)


def _file_state(path: str) -> _FileState | None:
    """The file's time and size; None if it is empty, or gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size) if status.st_size else None


# -- folders of classes -----------------------------------------------------------------------------------


class ClassFolders:
    """Sorts files into ``folder/<class>/<file>``.

    A file that is already there is not placed again, so that sorting can be repeated. If another file has its
    name, it gets a number: ``cat-2.jpg``.

    Args:
        folder: Where the folders of classes are; it is created if it is missing.
        classes: All class names.
        copy: Copy files instead of linking to them.
    """

    def __init__(self, folder: Path, classes: Sequence[str], *, copy: bool = False) -> None:
        self._folder, self._copy = folder, copy
        self._names = folder_names(classes)
        self._links: dict[Path, dict[str, str]] = {}  # by folder of a class: names by what they link to
        self._numbers: dict[tuple[Path, str], int] = {}  # the last number that a name got
        folder.mkdir(parents=True, exist_ok=True)

    def place(self, results: Iterable[Result]) -> None:
        """Place the files of these results, without those that have no answer or are gone."""
        for result in results:
            if result.label is not None:
                self._place(Path(os.path.abspath(result.key)), self._folder / self._names[result.label])

    def _place(self, file: Path, folder: Path) -> None:
        if not file.exists():
            return
        folder.mkdir(exist_ok=True)
        if self._copy:
            self._place_copy(file, folder)
        else:
            self._place_link(file, folder)

    def _place_link(self, file: Path, folder: Path) -> None:
        links = self._links.setdefault(folder, dict(_links_in(folder)))
        if str(file) in links:
            return
        for name in self._free_names(folder, file):
            try:
                (folder / name).symlink_to(file)
            except FileExistsError:
                continue
            except OSError as error:
                problem = f"{folder / name}: links cannot be made here ({error.strerror}); use --copy"
                raise OSError(error.errno, problem) from error
            links[str(file)] = name
            return

    def _place_copy(self, file: Path, folder: Path) -> None:
        temporary = folder / f".{secrets.token_hex(8)}.tmp"
        try:
            for name in self._free_names(folder, file):
                if _same_content(folder / name, file):
                    return
                if (folder / name).exists():
                    continue
                if not temporary.exists():
                    shutil.copy2(file, temporary)
                if _rename_to_free_name(temporary, folder / name):
                    return
        finally:
            temporary.unlink(missing_ok=True)

    def _free_names(self, folder: Path, file: Path) -> Iterator[str]:
        """The file's name, then with numbers; those that links of this run have taken are left out."""
        first = 1 if self._copy else self._numbers.get((folder, file.name), 0) + 1
        for number in count(first):
            self._numbers[folder, file.name] = number
            yield file.name if number == 1 else f"{file.stem}-{number}{file.suffix}"


def _links_in(folder: Path) -> Iterator[tuple[str, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield os.readlink(entry.path), entry.name


def _same_content(one: Path, other: Path) -> bool:
    return one.is_file() and filecmp.cmp(one, other, shallow=False)


def _rename_to_free_name(file: Path, name: Path) -> bool:
    """Rename a file unless the new name is taken; says whether it was free."""
    try:
        os.link(file, name)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if name.exists():
            return False
        os.replace(file, name)
    return True


def folder_names(classes: Sequence[str]) -> dict[str, str]:
    """For each class a folder name that every system allows, no two the same, in upper or lower case.

    >>> folder_names(["cat", "Cat", "AC/DC", ".."])
    {'cat': 'cat', 'Cat': 'Cat-2', 'AC/DC': 'AC_DC', '..': '_'}
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for label in classes:
        safe = _UNSAFE.sub("_", readable(label)).strip(". ").encode()[:_LONGEST].decode(errors="ignore")
        options = (safe or "_" if number == 1 else f"{safe or '_'}-{number}" for number in count(1))
        names[label] = next(name for name in options if name.casefold() not in taken)
        taken.add(names[label].casefold())
    return names


# -- names as text ----------------------------------------------------------------------------------------


def readable(name: str) -> str:
    r"""The name as text: bytes that are not UTF-8 become ``\xff``, all other names stay as they are.

    A backslash that could be mistaken for the start of such a byte is itself written as ``\x5c``.

    >>> readable("caf\udce9.jpg"), readable("café.jpg")
    ('caf\\xe9.jpg', 'café.jpg')
    """
    name = _ESCAPED.sub(r"\\x5cx\1", name)
    return _SURROGATES.sub(lambda found: "".join(f"\\x{ord(c) - 0xDC00:02x}" for c in found[0]), name)


def original(text: str) -> str:
    r"""The name that ``readable`` was given.

    >>> original("caf\\xe9.jpg") == "caf\udce9.jpg"
    True
    """
    return _ESCAPED.sub(lambda found: _from_byte(int(found[1], 16)), text)


def _from_byte(value: int) -> str:
    return chr(value) if value < 0x80 else chr(0xDC00 + value)
