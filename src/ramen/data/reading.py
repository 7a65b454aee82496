"""What is known about a data set, and what reading its files finds: domains, and everything that is wrong.

Loading and verifying read in the same way. Loading refuses damaged files; verifying reports all of them.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ramen.data.dataset import Dataset, Domain
from ramen.utils.checks import nearest

# An "error" prevents loading. A "difference" is a deviation from the released files, so published numbers
# would not be reproduced. A "note" is worth knowing.
Level = Literal["error", "difference", "note"]

# Called with what is being done, how much of it is done, and the total (None if unknown).
Progress = Callable[[str, int, int | None], object]

RECORD_FILE = "made.json"  # says how a set was made that was made by ``ramen data make``
UNFINISHED = ".unfinished"  # folder in a set that is being made, for files that are not complete yet

_FIRST = 10


@dataclass(frozen=True)
class Archive:
    """A file of a Zenodo record."""

    file: str
    md5: str
    record: int
    holds: tuple[str, ...] = ()  # the folders in it; by default, the folder of the whole set

    @property
    def url(self) -> str:
        """The address of the file itself."""
        return f"https://zenodo.org/records/{self.record}/files/{self.file}"

    @property
    def page(self) -> str:
        """The address of the page that describes its record."""
        return f"https://zenodo.org/records/{self.record}"


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """The record of a data set."""

    name: str
    title: str
    reader: "Reader"
    layout: str
    source: str = "your own"
    class_names: tuple[str, ...] = ()  # as used in prompts, in the order of the labels, if not in the files
    classes: int | None = None  # how many; None if the files decide
    counts: Mapping[str, int | None] = field(default_factory=dict)  # images of each domain, if copies agree
    folders: tuple[str, ...] = ()  # usual names of its folder
    archives: tuple[Archive, ...] = ()
    downloadable: bool = False
    needs_root: bool = True
    same_names: bool = False  # whether its usual list of class names contains a name twice
    extra_domains: tuple[str, ...] = ()  # used only if requested; no published result is about them

    @property
    def domains(self) -> int | None:
        """How many domains it usually has; None if the files decide."""
        return len(self.counts) or None

    @property
    def images(self) -> int | None:
        """Images per domain, or in total if the domains differ in size; None if not known."""
        sizes = set(self.counts.values())
        return sizes.pop() if len(sizes) == 1 else sum(count or 0 for count in self.counts.values()) or None

    @property
    def options(self) -> tuple[str, ...]:
        """What ``load`` takes besides the name and the root."""
        return tuple(inspect.signature(self.reader).parameters)[2:]


@dataclass(frozen=True)
class DataFinding:
    """Something about a file or folder that its owner should know."""

    level: Level
    where: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" ({self.remedy})" if self.remedy else "")


class DataError(ValueError):
    """The files of a data set are missing or damaged."""


@dataclass
class Reading:
    """A data set as it was found."""

    name: str
    root: Path
    classes: tuple[str, ...] = ()
    domains: list[Domain] = field(default_factory=list)
    identity: dict[str, Any] = field(default_factory=dict)
    findings: list[DataFinding] = field(default_factory=list)

    def add(self, level: Level, where: Path | str, what: str, remedy: str = "") -> None:
        """Add a finding."""
        self.findings.append(DataFinding(level, str(where), what, remedy))

    def has_file(self, path: Path, remedy: str) -> bool:
        """Whether ``path`` is a file; if not, that is an error."""
        if not path.is_file():
            self.add("error", path, "is not a file" if path.exists() else "missing", remedy)
        return path.is_file()

    def has_folder(self, path: Path, remedy: str) -> bool:
        """Whether ``path`` is a folder; if not, that is an error."""
        if not path.is_dir():
            self.add("error", path, "is not a folder" if path.exists() else "missing", remedy)
        return path.is_dir()

    @property
    def errors(self) -> list[DataFinding]:
        """What prevents loading."""
        return [finding for finding in self.findings if finding.level == "error"]

    def read_record(self) -> bool:
        """Whether the set was made by ``ramen data make``; if so, its record becomes part of the identity."""
        path = self.root / RECORD_FILE
        if not path.exists():
            return False
        try:
            self.identity["made"] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            self.add("error", path, f"cannot be read: {error}", "make the set again")
        return True

    def dataset(self) -> Dataset:
        """The data set; raises DataError if there are errors."""
        if self.errors:
            raise DataError(
                f"{self.name} in {self.root} cannot be loaded: {first_few(map(str, self.errors), '; ')}"
            )
        return Dataset(self.name, self.classes, tuple(self.domains), self.identity)


Reader = Callable[..., Reading]  # of a record, the folder or file, and options


def no_progress(what: str, done: int, total: int | None) -> None:
    """Report nothing."""


def first_few(items: Iterable[str], separator: str = ", ") -> str:
    """The first items, and how many more there are.

    >>> first_few(map(str, range(12)))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 2 more'
    """
    items = list(items)
    more = f"{separator}and {len(items) - _FIRST:,} more" if len(items) > _FIRST else ""
    return separator.join(items[:_FIRST]) + more


def choose_domains(chosen: Sequence[str] | None, default: Sequence[str], valid: Sequence[str]) -> list[str]:
    """The requested domains; raises ValueError unless each is valid and named once."""
    if chosen is None:
        return list(default)
    if isinstance(chosen, str) or not chosen:
        raise ValueError(f"domains must be a list of names, got {chosen!r}")
    for name in chosen:
        if name not in valid:
            raise ValueError(f"domains: no domain is called {name!r}{nearest(str(name), valid)}")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"domains must differ from each other, got {list(chosen)}")
    return list(chosen)


def find_root(root: Path, usual_names: Sequence[str], content: Iterable[str]) -> Path:
    """``root`` if it has any of the content; otherwise the folder in it that has one of the usual names."""
    if any((root / name).exists() for name in content):
        return root
    return next((root / name for name in usual_names if (root / name).is_dir()), root)
