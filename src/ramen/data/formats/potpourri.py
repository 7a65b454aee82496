"""Several data sets as one: a TOML file names them, and all answer to the classes of the first."""

import hashlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ramen.data.dataset import Labels
from ramen.data.formats.reading import Reading, choose_domains, first_few

_REMEDY = "it must have one table [[set]] per data set, each with a key data and, if that needs it, root"
_CLASSES = ("first", "all")
ReadSet = Callable[..., Reading]  # as ``ramen.data.registry.read``


def read_potpourri(read: ReadSet, root: Path, domains: Sequence[str] | None = None) -> Reading:
    """Read a TOML file that names data sets; a domain is called ``set/domain``.

    Args:
        read: Reads a data set, given its name, root and options.
        root: The file. ``classes = "first"`` at its top, which is the default, requires that the first set
            has all classes; with ``"all"``, those of later sets are added. Each table ``[[set]]`` has
            ``data``, ``root`` relative to the file, ``name`` if not that of the data, ``names`` to give a
            class the name that it has in the first set, or its number there; all else are options.
        domains: Those to use, in this order; all if None.
    """
    reading = Reading("potpourri", root)
    content = _read_file(reading)
    if content is None:
        return reading
    mixture = _Mixture(reading, adds=content.get("classes", "first") == "all")
    for number, entry in enumerate(content["set"], start=1):
        mixture.add(number, dict(entry), read)
    found = [domain.name for domain in reading.domains]
    if not reading.errors:
        chosen = choose_domains(domains, found, found)
        reading.domains = [reading.domains[found.index(name)] for name in chosen]
    reading.identity["sha256"] = hashlib.sha256(root.read_bytes()).hexdigest()
    return reading


def _read_file(reading: Reading) -> dict[str, Any] | None:
    """The content of the file, or None with a finding."""
    if not reading.has_file(reading.root, _REMEDY):
        return None
    try:
        content = tomllib.loads(reading.root.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not TOML
        reading.add("error", reading.root, f"cannot be read: {error}", _REMEDY)
        return None
    sets = content.get("set")
    if not isinstance(sets, list) or not sets or not all(isinstance(one, dict) for one in sets):
        reading.add("error", reading.root, "has no table [[set]]", _REMEDY)
        return None
    odd = sorted(set(content) - {"set", "classes"})
    if odd:
        reading.add("error", reading.root, f"has unknown keys: {first_few(odd)}", _REMEDY)
        return None
    if content.get("classes", "first") not in _CLASSES:
        what = f"classes must be one of {', '.join(map(repr, _CLASSES))}, got {content['classes']!r}"
        reading.add("error", reading.root, what)
        return None
    return content


class _Mixture:
    """The sets so far; their domains, classes and findings go into ``reading``."""

    def __init__(self, reading: Reading, *, adds: bool) -> None:
        self.reading, self.adds = reading, adds
        self.names: set[str] = set()
        reading.identity["sets"] = {}

    def add(self, number: int, entry: dict[str, Any], read: ReadSet) -> None:
        """Add the set of a table."""
        where = f"{self.reading.root}, set {number}"
        data, names = entry.pop("data", None), entry.pop("names", {})
        if not isinstance(data, str) or not _are_names(names):
            what = "data must be a name, and names a table of names and numbers"
            self.reading.add("error", where, what, _REMEDY)
            return
        root, title = entry.pop("root", None), str(entry.pop("name", data))
        if title in self.names:
            self.reading.add("error", where, f"is called {title!r} like an earlier one", "give it a name")
            return
        self.names.add(title)
        try:
            one = read(data, None if root is None else self.reading.root.parent / root, **entry)
        except ValueError as error:  # unknown names and options
            self.reading.add("error", where, str(error))
            return
        self.reading.findings += one.findings
        labels = None if one.errors else self._labels(where, one.classes, names)
        if labels is None:
            return
        self.reading.identity["sets"][title] = {"data": data, **one.identity}
        self.reading.domains += [
            replace(domain, name=f"{title}/{domain.name}", labels=labels[domain.labels])
            for domain in one.domains
        ]

    def _labels(self, where: str, classes: tuple[str, ...], names: Mapping[str, Any]) -> Labels | None:
        """For each class of a set, its number among those of all sets; None with a finding."""
        reading = self.reading
        if odd := sorted(set(names) - set(classes)):
            reading.add("error", where, f"names has classes that the set does not have: {first_few(odd)}")
            return None
        if not reading.classes and not names:
            reading.classes = classes
        if classes == reading.classes and not names:
            return np.arange(len(classes))
        wanted = [names.get(name, name) for name in classes]
        new = list(dict.fromkeys(n for n in wanted if isinstance(n, str) and n not in reading.classes))
        if self.adds or not reading.classes:
            reading.classes += tuple(new)
        elif new:
            what = f"has {len(new):,} classes that the first set does not have: {first_few(new)}"
            reading.add("error", where, what, 'rename them with names, or set classes = "all"')
            return None
        places = [self._places(name) for name in wanted]
        unclear = [str(n) for n, found in zip(wanted, places, strict=True) if len(found) != 1]
        if unclear:
            what = f"does not say which class of the first set these are: {first_few(unclear)}"
            reading.add("error", where, what, "give their numbers, counted from 0, with names")
            return None
        if len(set(map(tuple, places))) < len(places):
            reading.add("error", where, "has two classes that are the same class of the first set")
            return None
        return np.array([found[0] for found in places], dtype=np.int64)

    def _places(self, name: str | int) -> list[int]:
        """The numbers of the classes that a name or a number stands for."""
        known = self.reading.classes
        if isinstance(name, str):
            return [place for place, other in enumerate(known) if other == name]
        return [name] if 0 <= name < len(known) else []


def _are_names(names: object) -> bool:
    return isinstance(names, Mapping) and all(type(name) in (str, int) for name in names.values())


def make_reader(read: ReadSet) -> Callable[..., Reading]:
    """The reader of the registry, which has the others."""

    def read_file(root: Path, domains: Sequence[str] | None = None) -> Reading:
        return read_potpourri(read, root, domains)

    return read_file
