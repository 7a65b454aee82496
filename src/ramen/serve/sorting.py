"""Files in one folder per class: links to them, or copies. No file is ever replaced by another one."""

import filecmp
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from ramen.serve.outputs.readable_names import readable
from ramen.serve.result import Result

_UNSAFE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')  # what some system does not allow in a name
_LONGEST = 200  # bytes in a folder's name; file systems allow 255, and a number may follow


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
