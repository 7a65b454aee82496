"""Result files as a DataFrame: one row per run, and a column per entry of the file, named by its path."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ramen.experiments import paper
from ramen.experiments.store import DamagedResultError, read_result
from ramen.experiments.values import with_defaults

Result = Mapping[str, Any]

# What decides the stream and the classifier. Results that agree in all of it are shown in one table.
SETTING = ("data", "model", "protocol", "data_options", "protocol_parameters", "templates")
_PARTS = {
    "experiment": (*SETTING, "method", "parameters", "label", "seed", "batch"),
    "scores": ("average", "domains", "images", "zero_shot", "difference", "changes"),
    "cost": ("ms_an_image", "memory_bytes", "passes", "peak_device_bytes", "peak_host_bytes"),
}


def results(*paths: Path | str) -> pd.DataFrame:
    """All results in files and folders as a DataFrame, for analyses of your own.

    ``ramen.results("results").groupby("title")["scores.average"].agg(["mean", "std", "count"])`` is a table
    over seeds; ``.filter(like="scores.domains.")`` are the accuracies by domain. A damaged file is a warning.

    Args:
        paths: Result files, or folders to search for them.

    Returns:
        One row per run. ``title`` names the method or the variant, ``setting`` the stream and the model,
        ``file`` the run's file; each further column is an entry of the file, such as ``experiment.seed``.
    """
    found = collect(paths)
    for warning in found.warnings:
        warnings.warn(warning, stacklevel=2)
    table = frame(found.results)
    table.insert(2, "file", [str(found.files[identity(result)]) for result in found.results])
    return table


def frame(found: Sequence[Result]) -> pd.DataFrame:
    """Results as a DataFrame."""
    table = pd.json_normalize(list(found))
    table.insert(0, "title", [row_title(result) for result in found])
    table.insert(1, "setting", [describe_setting(result["experiment"]) for result in found])
    return table


# -- reading ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collection:
    """What was read: results of runs and their files by identity, plans, other results, warnings."""

    results: list[dict[str, Any]]
    files: dict[str, Path] = field(default_factory=dict)
    plans: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def collect(paths: Sequence[Path | str]) -> Collection:
    """Read result files, and all result files in folders and their subfolders.

    A damaged file becomes a warning; an error is raised only if no result is left.
    """
    found, runs = Collection([]), dict[str, tuple[dict[str, Any], Path]]()
    for path in _files(paths):
        try:
            result = read_result(path)
            if result.get("kind") != "run":
                (found.plans if result.get("kind") == "plan" else found.others).append(result)
                continue
            _require_parts(path, result)
        except DamagedResultError as error:
            found.warnings.append(str(error))
            continue
        key = identity(result)
        before, place = runs.setdefault(key, (result, path))
        if result != before:
            older, newer = sorted([(before, place), (result, path)], key=lambda one: _finished(one[0]))
            runs[key] = newer
            found.warnings.append(f"{older[1]} is ignored: {newer[1]} is a newer run of the same experiment")
    if not runs and not found.others:
        listed = ", ".join(map(str, paths))
        raise ValueError("\n".join([f"there are no results in {listed}", *found.warnings]))
    found.results.extend(result for result, _ in runs.values())
    found.files.update((key, path) for key, (_, path) in runs.items())
    return found


def _files(paths: Sequence[Path | str]) -> list[Path]:
    """The files, and all JSON files of folders but those in hidden ones, which hold checkpoints."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no file or folder {path}")
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        shown = (f for f in files if not any(p.startswith(".") for p in f.relative_to(path).parts))
        found |= dict.fromkeys(shown)
    return list(found)


def _finished(result: Result) -> str:
    return str(result.get("provenance", {}).get("finished", ""))


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
    parts["parameters"] = parameters(result)
    return json.dumps(parts, sort_keys=True)


def parameters(result: Result) -> dict[str, Any]:
    """All parameters of the method, given or by default, in plain values."""
    return with_defaults(result["experiment"]["method"], result["experiment"]["parameters"])


# -- rows ---------------------------------------------------------------------------------------------------


def row_title(result: Result) -> str:
    """The variant's label, or the method's name in the paper's tables."""
    return result["experiment"]["label"] or paper.title(result["experiment"]["method"])


class Rows:
    """Rows of tables: experiments over their seeds.

    Attributes:
        groups: The results of each row, sorted by seed.
        firsts: The first result of each, for what its runs share.
        runs: All of them as a DataFrame, with the place of its row in the column ``row``.
        names: What rows are called: the title and, if needed, the settings that differ.
        anchors: On a page, the ids of their settings.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Result]],
        names: Sequence[str] | None = None,
        anchors: Sequence[str] | None = None,
    ) -> None:
        self.groups = [sorted(group, key=lambda one: one["experiment"]["seed"]) for group in groups]
        self.firsts = [group[0] for group in self.groups]
        self.names = list(names or _names(self.firsts))
        self.anchors = list(anchors) if anchors is not None else None
        self.runs = frame([result for group in self.groups for result in group])
        self.runs["row"] = [place for place, group in enumerate(self.groups) for _ in group]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.groups)

    @property
    def setting(self) -> str:
        """Data, model and stream in words."""
        return describe_setting(self.firsts[0]["experiment"])

    @property
    def domains(self) -> list[str]:
        """The names of all domains."""
        return list(dict.fromkeys(name for one in self.firsts for name in one["scores"]["domains"]))

    @property
    def seeds(self) -> list[list[int]]:
        """The seeds of each row."""
        return [[result["experiment"]["seed"] for result in group] for group in self.groups]

    def facts(self, name: str) -> list[Any]:
        """A setting of each row's experiment."""
        return [one["experiment"].get(name) for one in self.firsts]

    def column(self, path: str) -> pd.Series:
        """The numbers of all runs at a path of their files; not a number for what a run does not have."""
        if path not in self.runs:
            return pd.Series(float("nan"), self.runs.index)
        return pd.to_numeric(self.runs[path], errors="coerce").astype(float)

    def over(self, numbers: "str | pd.Series", how: str = "mean") -> pd.Series:
        """Mean, ``std``, ``sum`` or ``max`` over seeds by row; not a number unless all runs have one.

        Args:
            numbers: One per run, or the path at which their files have it.
            how: What is taken of them.
        """
        column = self.column(numbers) if isinstance(numbers, str) else numbers
        found = column.groupby(self.runs["row"]).agg(lambda values: getattr(values, how)(skipna=False))
        return found.reindex(range(len(self))).astype(float)

    def only(self, places: Sequence[int]) -> "Rows":
        """Some of the rows."""
        anchors = None if self.anchors is None else [self.anchors[place] for place in places]
        return Rows(
            [self.groups[place] for place in places], [self.names[place] for place in places], anchors
        )


def groups_of(found: Sequence[Result]) -> list[list[Result]]:
    """Results that differ in nothing but the seed, in the order of their first ones.

    Of two results with the same seed, the later one in ``found`` is used.
    """
    groups: dict[str, dict[int, Result]] = {}
    for result in found:
        seeds = groups.setdefault(identity(result, without="seed"), {})
        seeds[result["experiment"]["seed"]] = result
    return [list(seeds.values()) for seeds in groups.values()]


def settings_of(found: Sequence[Result]) -> list[list[list[Result]]]:
    """The groups of each stream and classifier, in the order of the paper's tables."""
    settings: dict[str, list[list[Result]]] = {}
    for group in groups_of(found):
        settings.setdefault(setting_key(group[0]), []).append(group)
    return [
        sorted(members, key=lambda group: paper.position(group[0]["experiment"]["method"]))
        for members in settings.values()
    ]


def all_rows(found: Sequence[Result]) -> list[Rows]:
    """The rows of each setting."""
    return [Rows(groups) for groups in settings_of(found)]


def setting_key(result: Result) -> str:
    """The stream and the classifier as text: equal for what is shown in one table."""
    return json.dumps([result["experiment"][name] for name in SETTING], sort_keys=True)


def describe_setting(experiment: Mapping[str, Any]) -> str:
    """Data, model and stream in words."""
    known = paper.SETTINGS.get(experiment["data"])
    data = known.title if known else experiment["data"]
    options = {**experiment["data_options"], **experiment["protocol_parameters"]}
    listed = "".join(f", {name} {value}" for name, value in options.items() if value is not None)
    templates = "" if experiment["templates"] == "ensemble" else f", templates {experiment['templates']}"
    return f"{data}, {experiment['model']}, {experiment['protocol']} stream{listed}{templates}"


def _names(firsts: Sequence[Result]) -> list[str]:
    """Unique names: titles, with the settings in which namesakes differ."""
    titles, facts = [row_title(one) for one in firsts], [_facts(one) for one in firsts]
    names = []
    for title, own in zip(titles, facts, strict=True):
        others = [other for name, other in zip(titles, facts, strict=True) if name == title]
        differing = [name for name in own if any(other.get(name) != own[name] for other in others)]
        listed = ", ".join(f"{name}={own[name]}" for name in differing)
        names.append(f"{title} ({listed})" if listed else title)
    return names


def _facts(result: Result) -> dict[str, Any]:
    experiment = result["experiment"]
    others = ("batch", "window", "tuned", "device", "dtype", "source")
    return {**parameters(result), **{name: experiment[name] for name in others if name in experiment}}
