"""Read results and group them over seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.spread import Spread, over_seeds
from ramen.experiments.plan.values import plain
from ramen.experiments.run.results import DamagedResultError, read_result
from ramen.methods._registry import describe, list_methods

Result = Mapping[str, Any]

# What decides the stream and the classifier. Results that agree in all of it are shown in one table.
SETTING = ("data", "model", "protocol", "data_options", "protocol_parameters", "templates")
_PARTS = {
    "experiment": (*SETTING, "method", "parameters", "label", "seed", "batch"),
    "scores": ("average", "domains", "images", "zero_shot", "difference", "changes"),
    "cost": ("ms_an_image", "memory_bytes", "passes", "peak_device_bytes", "peak_host_bytes"),
}


@dataclass(frozen=True)
class Collection:
    """What was read: results of runs, results of other kinds, and warnings about the rest."""

    results: list[dict[str, Any]]
    others: list[dict[str, Any]]  # results that are not of runs
    warnings: list[str]


def collect(paths: Sequence[Path | str]) -> Collection:
    """Read result files, and all result files in folders and their subfolders.

    A damaged file becomes a warning; an error is raised only if no result is left.
    """
    results: dict[str, tuple[dict[str, Any], Path]] = {}
    others, warnings = [], []
    for path in _files(paths):
        try:
            result = read_result(path)
            if result.get("kind") != "run":
                others.append(result)
                continue
            _require_parts(path, result)
        except DamagedResultError as error:
            warnings.append(str(error))
            continue
        key = identity(result)
        if key not in results:
            results[key] = result, path
        elif result != results[key][0]:
            kept, older = sorted([(result, path), results[key]], key=_finished, reverse=True)
            results[key] = kept
            warnings.append(f"{older[1]} is ignored: {kept[1]} is a newer run of the same experiment")
    if not results and not others:
        listed = ", ".join(map(str, paths))
        raise ValueError("\n".join([f"there are no results in {listed}", *warnings]))
    return Collection([result for result, _ in results.values()], others, warnings)


def _files(paths: Sequence[Path | str]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no file or folder {path}")
        found |= dict.fromkeys(_json_files(path) if path.is_dir() else [path])
    return list(found)


def _json_files(folder: Path) -> list[Path]:
    """All JSON files but those in hidden folders, which hold checkpoints."""
    files = sorted(folder.rglob("*.json"))
    return [
        file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts)
    ]


def _finished(found: tuple[Result, Path]) -> str:
    return str(found[0].get("provenance", {}).get("finished", ""))


def _require_parts(path: Path, result: Result) -> None:
    for part, keys in _PARTS.items():
        block = result.get(part)
        missing = [key for key in keys if not isinstance(block, Mapping) or key not in block]
        if missing:
            raise DamagedResultError(
                f"{path} is damaged ({part} has no {missing[0]!r}); remove it and run the experiment again"
            )


def identity(result: Result, *, without: str | None = None) -> str:
    """What decides a result, as text; the same whether a default value was given or not.

    Args:
        result: The result of a run.
        without: A part to leave out.
    """
    parts = {name: value for name, value in result["experiment"].items() if name != without}
    parts["parameters"] = with_defaults(parts["method"], parts["parameters"])
    return json.dumps(parts, sort_keys=True)


def with_defaults(method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a method in plain values; only the given ones if the method is not registered."""
    known = describe(method).defaults if method in list_methods() else {}
    return {**{name: plain(value) for name, value in known.items() if name != "seed"}, **parameters}


@dataclass(frozen=True)
class Group:
    """One experiment over its seeds."""

    results: tuple[Result, ...]  # sorted by seed

    @property
    def experiment(self) -> Mapping[str, Any]:
        """The settings that the runs share, with the seed of the first."""
        block: Mapping[str, Any] = self.results[0]["experiment"]
        return block

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.experiment["method"])

    @property
    def title(self) -> str:
        """The variant's label, or the method's name in the paper's tables."""
        return self.experiment["label"] or paper.title(self.method)

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters of the method, given or by default, in plain values."""
        return with_defaults(self.method, self.experiment["parameters"])

    @property
    def setting(self) -> str:
        """The stream and the classifier as text: equal for groups that are shown in one table."""
        return json.dumps([self.experiment[name] for name in SETTING], sort_keys=True)

    @property
    def seeds(self) -> list[int]:
        """The seeds, in ascending order."""
        return [result["experiment"]["seed"] for result in self.results]

    @property
    def average(self) -> Spread:
        """The average over domains."""
        return self.over("scores", "average")

    @cached_property
    def domains(self) -> dict[str, Spread]:
        """Accuracy on each domain."""
        return {name: self.over("scores", "domains", name) for name in self.results[0]["scores"]["domains"]}

    @property
    def zero_shot(self) -> Spread:
        """The average of the same classifier on the same images without adaptation."""
        return self.over("scores", "zero_shot", "average")

    @property
    def gain(self) -> Spread:
        """What the method adds to it on the same images."""
        return self.over("scores", "difference", "points")

    def over(self, *path: str) -> Spread:
        """Mean and deviation over seeds of the number at that path in each result."""
        return over_seeds([float(value) for value in self.each(*path)])

    def each(self, *path: str) -> list[Any]:
        """The value at that path in each result, sorted by seed."""
        values = []
        for result in self.results:
            value: Any = result
            for name in path:
                value = value[name]
            values.append(value)
        return values

    def known(self, *path: str) -> list[Any] | None:
        """As ``each``; None if a result has no value at that path."""
        try:
            values = self.each(*path)
        except KeyError:
            return None
        return None if None in values else values

    def largest(self, *path: str) -> float | None:
        """The largest number at that path; None if a result has none."""
        values = self.known(*path)
        return None if values is None else max(values)


def group(results: Sequence[Result]) -> list[Group]:
    """Groups of results that differ in nothing but the seed, in the order of their first results.

    Of two results with the same seed, the later one in ``results`` is used.
    """
    groups: dict[str, dict[int, Result]] = {}
    for result in results:
        seeds = groups.setdefault(identity(result, without="seed"), {})
        seeds[result["experiment"]["seed"]] = result
    return [Group(tuple(seeds[seed] for seed in sorted(seeds))) for seeds in groups.values()]


def by_setting(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups of each stream and classifier, in the order of the paper's tables."""
    settings: dict[str, list[Group]] = {}
    for one in groups:
        settings.setdefault(one.setting, []).append(one)
    return [sorted(members, key=lambda one: paper.position(one.method)) for members in settings.values()]


def row_titles(groups: Sequence[Group]) -> list[str]:
    """A unique name for each group: its title and, if needed, the settings that differ.

    >>> a, b = ({"experiment": {"method": "tent", "label": None, "parameters": {"lr": lr}}} for lr in (1, 2))
    >>> row_titles([Group((a,)), Group((b,))])
    ['Tent (lr=1)', 'Tent (lr=2)']
    """
    titles = []
    for one in groups:
        namesakes = [other for other in groups if other.title == one.title]
        own, others = _facts(one), [_facts(other) for other in namesakes]
        differing = [name for name in own if any(other.get(name) != own[name] for other in others)]
        parts = [f"{name}={own[name]}" for name in differing]
        titles.append(f"{one.title} ({', '.join(parts)})" if parts else one.title)
    return titles


def _facts(one: Group) -> dict[str, Any]:
    others = {
        key: one.experiment[key]
        for key in ("batch", "window", "tuned", "device", "dtype")
        if key in one.experiment
    }
    return {**one.parameters, **others}
