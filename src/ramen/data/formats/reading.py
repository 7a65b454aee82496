"""What was found where a data set should lie: its domains, and everything that is wrong with them.

Loading and verifying read in the same way: loading refuses what is damaged, verifying tells all of it.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ramen.data.dataset import Dataset, Domain
from ramen.utils.checks import nearest

# An "error" keeps a data set from being loaded; a "difference" is one from the released files, with which
# published numbers would not be repeated; a "note" is worth knowing.
Level = Literal["error", "difference", "note"]

MADE = "made.json"  # what a set of our own making was made of

_LISTED = 10


@dataclass(frozen=True)
class Finding:
    """Something about a file or folder that its owner must know."""

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
    findings: list[Finding] = field(default_factory=list)

    def add(self, level: Level, where: Path | str, what: str, remedy: str = "") -> None:
        """Note a finding."""
        self.findings.append(Finding(level, str(where), what, remedy))

    @property
    def errors(self) -> list[Finding]:
        """What keeps it from being loaded."""
        return [finding for finding in self.findings if finding.level == "error"]

    def read_made(self) -> bool:
        """Whether the set is of our own making; if so, what its maker wrote down joins the identity."""
        path = self.root / MADE
        if not path.exists():
            return False
        try:
            made = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            self.add("error", path, f"cannot be read: {error}", "make the set again")
            return True
        self.identity["made"] = made
        return True

    def dataset(self) -> Dataset:
        """The data set, if nothing is wrong with it."""
        if self.errors:
            raise DataError(
                f"{self.name} in {self.root} cannot be loaded: {listed(map(str, self.errors), '; ')}"
            )
        return Dataset(self.name, self.classes, tuple(self.domains), self.identity)


Reader = Callable[..., Reading]


def listed(items: Iterable[str], separator: str = ", ") -> str:
    """The first few of them, and how many more there are."""
    items = list(items)
    more = f"{separator}and {len(items) - _LISTED:,} more" if len(items) > _LISTED else ""
    return separator.join(items[:_LISTED]) + more


def choose_domains(chosen: Sequence[str] | None, default: Sequence[str], valid: Sequence[str]) -> list[str]:
    """The domains asked for, each once and known."""
    if chosen is None:
        return list(default)
    if isinstance(chosen, str) or not chosen:
        raise ValueError(f"domains must be a list of names, got {chosen!r}")
    for name in chosen:
        if name not in valid:
            raise ValueError(f"domains: there is none called {name!r}{nearest(str(name), valid)}")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"domains must differ from each other, got {list(chosen)}")
    return list(chosen)


def find_root(root: Path, own_folders: Sequence[str], content: Iterable[str]) -> Path:
    """``root``, or where it has none of the content, the folder in it that is usually called so."""
    if any((root / name).exists() for name in content):
        return root
    return next((root / name for name in own_folders if (root / name).is_dir()), root)
