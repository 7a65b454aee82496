"""Hyper-parameters of published experiments, one file per data set and backbone.

A preset file names the data sets and the model that it is for. It has one table per protocol, with one table
per method in it. A protocol without a table uses the one of ``mixed``.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ramen.data.streams.stream import PROTOCOLS
from ramen.methods._registry import describe
from ramen.utils.checks import nearest

FOLDER = Path(__file__).parent / "presets"
GENERAL = "mixed"  # used for protocols without a table
_FACTS = ("data", "model", "batch", "templates", "severity")


@dataclass(frozen=True)
class Preset:
    """The content of a preset file; None for what it does not set."""

    name: str | None = None
    data: tuple[str, ...] = ()
    model: str | None = None
    batch: int | None = None
    templates: str | None = None
    severity: int | None = None
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def section(self, protocol: str) -> str:
        """The protocol whose table is used."""
        return protocol if protocol in self.rows else GENERAL

    def row(self, method: str, protocol: str) -> dict[str, Any]:
        """The parameters of a method; empty if the file does not name it."""
        return dict(self.rows.get(self.section(protocol), {}).get(method, {}))


NO_PRESET = Preset()


def list_presets() -> list[str]:
    """The names of the presets in this package.

    >>> list_presets()[:2]
    ['cifar100c', 'cifar100c_rn101']
    """
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@cache
def load_preset(name: str) -> Preset:
    """The preset with that name, or in that file."""
    path = Path(name).expanduser() if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if name.endswith(".toml"):
            raise ValueError(f"preset: there is no file {path}") from None
        raise ValueError(f"preset: there is no preset {name!r}{nearest(name, list_presets())}") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not TOML
        raise ValueError(f"preset: {path} cannot be read: {error}") from None
    facts = {fact: content.pop(fact) for fact in _FACTS if fact in content}
    if not isinstance(facts.get("data", []), list):
        raise ValueError(f"preset {path}: data must be a list of names, got {facts['data']!r}")
    _check(path, content)
    return Preset(name, **{**facts, "data": tuple(facts.get("data", ()))}, rows=content)


def _check(path: Path, rows: Mapping[str, Any]) -> None:
    """Refuse unknown protocols, methods and parameters: a misspelt name would have no effect."""
    for protocol, methods in rows.items():
        if protocol not in PROTOCOLS or not isinstance(methods, dict):
            hint = nearest(protocol, [*PROTOCOLS, *_FACTS])
            raise ValueError(f"preset {path}: {protocol!r} is neither a protocol nor a known key{hint}")
        for method, parameters in methods.items():
            try:
                known = describe(method).defaults
            except ValueError as error:
                raise ValueError(f"preset {path}: {error}") from None
            for parameter in parameters:
                if parameter not in known or parameter == "seed":
                    hint = nearest(parameter, set(known) - {"seed"})
                    raise ValueError(f"preset {path}: {method} has no parameter {parameter!r}{hint}")


def find_preset(name: str | None, data: str, model: str | None = None) -> Preset:
    """The preset with that name; if None, the data set's preset for that model, or its usual one.

    Args:
        name: A preset, a file that ends with .toml, ``"none"``, or None.
        data: A data set.
        model: A model; several backbones may have a preset for the same data set.
    """
    if name == "none":
        return NO_PRESET
    if name is not None:
        return load_preset(name)
    fitting = [preset for preset in map(load_preset, list_presets()) if data in preset.data]
    for preset in fitting:
        if preset.model == model:
            return preset
    # The usual one has the shortest name: cifar100c, not cifar100c_rn101
    return min(fitting, key=lambda preset: len(str(preset.name)), default=NO_PRESET)
