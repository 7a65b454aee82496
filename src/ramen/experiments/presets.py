"""Hyper-parameters of published experiments, and the models that can be loaded by name.

``presets.toml`` has all of this package's presets. A file of one's own names the data sets and the model that
it is for, and has one table per protocol, with one table per method in it: ``[mixed.tent]``. A protocol
without a table uses the one of ``mixed``.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ramen.experiments.values import read_toml, require_parameters
from ramen.utils.checks import nearest

FILE = Path(__file__).with_suffix(".toml")
GENERAL, SINGLE = "mixed", "single"  # the first is used for protocols without a table
_OTHERS = "others"
_FACTS = ("data", "model", "batch", "templates", "severity")


@dataclass(frozen=True)
class Preset:
    """What a preset sets; None for what it does not."""

    name: str | None = None
    data: tuple[str, ...] = ()
    model: str | None = None
    batch: int | None = None
    templates: str | None = None
    severity: int | None = None
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def row(self, method: str, protocol: str) -> dict[str, Any]:
        """The parameters of a method; empty if the preset does not name it."""
        methods = self.rows.get(protocol if protocol in self.rows else GENERAL, {})
        return dict(methods.get(method, {}))


NO_PRESET = Preset()


def list_presets() -> list[str]:
    """The names of the presets in this package.

    >>> list_presets()[:2]
    ['cifar100c', 'cifar100c_rn101']
    """
    return sorted(_own()["presets"])


@cache
def _own() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def load_preset(name: str) -> Preset:
    """The preset with that name, or in that file."""
    if name.endswith(".toml"):
        return _read(name)
    if name not in list_presets():
        raise ValueError(f"preset: there is no preset {name!r}{nearest(name, list_presets())}")
    facts = {key: value for key, value in _own()["presets"][name].items() if key != "like"}
    names = [name, _own()["presets"][name].get("like", name), _OTHERS]
    methods = {key: table for key, table in _own().items() if key != "presets"}
    rows = {
        protocol: {method: _values(table, names, place) for method, table in methods.items()}
        for place, protocol in enumerate((GENERAL, SINGLE))
    }
    return Preset(name, **{**facts, "data": tuple(facts["data"])}, rows=rows)


def _values(table: Mapping[str, Any], names: list[str], place: int) -> dict[str, Any]:
    """The parameters of a method in the first of these presets that sets them."""
    row = {}
    for parameter, cells in table.items():
        found = cells
        if isinstance(cells, dict):
            found = next((cells[name] for name in names if name in cells), None)
        if found is not None:
            row[parameter] = found[place] if isinstance(found, list) else found
    return row


def _read(name: str) -> Preset:
    """A preset of the user's own."""
    path = Path(name).expanduser()
    content = read_toml("preset", path)
    facts = {fact: content.pop(fact) for fact in _FACTS if fact in content}
    if not isinstance(facts.get("data", []), list):
        raise ValueError(f"preset {path}: data must be a list of names, got {facts['data']!r}")
    _check(path, content)
    return Preset(name, **{**facts, "data": tuple(facts.get("data", ()))}, rows=content)


def _check(path: Path, rows: Mapping[str, Any]) -> None:
    """Refuse unknown protocols, methods and parameters."""
    from ramen.data.streams.stream import PROTOCOLS

    for protocol, methods in rows.items():
        if protocol not in PROTOCOLS or not isinstance(methods, dict):
            hint = nearest(protocol, [*PROTOCOLS, *_FACTS])
            raise ValueError(f"preset {path}: {protocol!r} is neither a protocol nor a known key{hint}")
        for method, parameters in methods.items():
            require_parameters(f"preset {path}", method, parameters)


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


def list_models(containing: str = "") -> dict[str, list[str]]:
    """The presets of open_clip's pretrained models and the package's own; models with presets come first."""
    import open_clip

    used: dict[str, list[str]] = {}
    for preset in map(load_preset, list_presets()):
        used.setdefault(str(preset.model), []).append(str(preset.name))
    names = [f"{architecture}/{tag}" for architecture, tag in open_clip.list_pretrained()]
    everything = dict.fromkeys(["tiny", *sorted(used), *names])
    return {name: used.get(name, []) for name in everything if containing.lower() in name.lower()}
