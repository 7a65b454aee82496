"""Which runs belong together across rows: sweeps of a parameter, variants of a method, single and mixed streams."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramen.experiments import paper
from ramen.experiments.collect import Group
from ramen.experiments.comparison import obstacle
from ramen.experiments.sweep import Point, Sweep

_LEAST_POINTS = 3  # two values are two rows of a table, three are a curve
_LINES = ("clip", "ensemble", "entmin")


@dataclass(frozen=True)
class Swept:
    """A sweep and the groups behind its points."""

    sweep: Sweep
    groups: tuple[Group, ...]


def split_sweeps(groups: Sequence[Group]) -> tuple[list[Group], list[Swept]]:
    """Take the points of sweeps out of one setting's groups.

    A sweep is three groups or more of one method that differ in a single parameter. The group that all of its
    sweeps have in common stays in the table.
    """
    sweeps, moved = [], []
    families: dict[tuple[str, Any], list[Group]] = {}
    for one in groups:
        families.setdefault((one.method, one.experiment["label"]), []).append(one)
    for family in families.values():
        base = max(family, key=lambda one: (not _changed(one), len(_neighbours(one, family))))
        by_parameter: dict[str, list[Group]] = {}
        for parameter, other in _neighbours(base, family):
            by_parameter.setdefault(parameter, [base]).append(other)
        for parameter, members in by_parameter.items():
            if len(members) >= _LEAST_POINTS:
                sweeps.append(_swept(parameter, members, groups))
                moved += members[1:]
    return [one for one in groups if not any(one is other for other in moved)], sweeps


def value_of(group: Group, parameter: str) -> Any:
    """A parameter's value in a group; the method's default where the group does not set it."""
    facts = _facts(group)
    if parameter in facts:
        return facts[parameter]
    from ramen.methods.registry import describe

    try:
        return describe(group.method).defaults.get(parameter)
    except ValueError:
        return None  # a method of another program, which is not here


def reference_lines(groups: Sequence[Group]) -> dict[str, float]:
    """Averages of the methods that others are compared with."""
    own = {one.method: one for one in reversed(groups) if one.experiment["label"] is None}
    return {own[name].title: own[name].average.mean for name in _LINES if name in own}


def single_and_mixed(settings: Sequence[Sequence[Group]]) -> list[dict[str, list[Group]]]:
    """Groups of the same data and model whose domains come singly, and mixed; by protocol."""
    pairs: dict[str, dict[str, list[Group]]] = {}
    for groups in settings:
        protocol = groups[0].experiment["protocol"]
        if protocol in ("single", "mixed"):
            pairs.setdefault(_beside_protocol(groups[0]), {}).setdefault(protocol, list(groups))
    return [pair for pair in pairs.values() if len(pair) == 2]


def ablations(settings: Sequence[Sequence[Group]]) -> list[dict[str, dict[str, Group]]]:
    """Variants with a label and the method they vary: by label, then by protocol; one dict for each method."""
    found: dict[tuple[str, str], dict[str, dict[str, Group]]] = {}
    for groups in settings:
        for method in dict.fromkeys(one.method for one in groups if one.experiment["label"] is not None):
            variants = found.setdefault((_beside_protocol(groups[0]), method), {})
            for one in sorted(groups, key=lambda one: one.experiment["label"] is None):
                if one.method == method:
                    variants.setdefault(one.title, {}).setdefault(one.experiment["protocol"], one)
    return list(found.values())


def _beside_protocol(group: Group) -> str:
    names = ("data", "model", "data_options", "templates")
    return json.dumps([group.experiment[name] for name in names], sort_keys=True)


def _changed(group: Group) -> bool:
    return any(result.get("overrides") for result in group.results)


def _facts(group: Group) -> dict[str, Any]:
    return {**group.experiment["parameters"], "batch": group.experiment["batch"]}


def _fixed(group: Group) -> list[Any]:
    return [group.experiment.get(name) for name in ("device", "dtype")]


def _neighbours(base: Group, family: Sequence[Group]) -> list[tuple[str, Group]]:
    """The others that differ from ``base`` in one parameter, and in which."""
    found = []
    for other in family:
        own, its = _facts(base), _facts(other)
        differing = [name for name in {**own, **its} if value_of(base, name) != value_of(other, name)]
        if len(differing) == 1 and _fixed(base) == _fixed(other):
            found.append((differing[0], other))
    return found


def _swept(parameter: str, members: Sequence[Group], groups: Sequence[Group]) -> Swept:
    base = members[0]
    ordered = sorted(members, key=lambda one: _order(value_of(one, parameter)))
    reported = _reported(base, parameter)
    points = []
    for one in ordered:
        value, average = value_of(one, parameter), one.average
        shown = "default" if value is None else str(value)
        comparable = obstacle(one, frozenset({parameter})) is None
        known = reported.get(value) if comparable and isinstance(value, int | float) else None
        points.append(Point(value, shown, average.mean, average.deviation, average.seeds, known))
    experiment = base.experiment
    return Swept(
        Sweep(
            parameter=parameter,
            method=base.method,
            data=experiment["data"],
            model=experiment["model"],
            protocol=experiment["protocol"],
            points=points,
            lines=reference_lines([one for one in groups if one.method != base.method]),
        ),
        tuple(ordered),
    )


def _reported(base: Group, parameter: str) -> Mapping[float, float]:
    if base.experiment["protocol"] != "mixed" or base.experiment["label"] is not None:
        return {}
    curve = paper.reported_sweep(base.experiment["data"], parameter, base.method)
    return {} if curve is None else {value: point.mean for value, point in curve.points.items()}


def _order(value: Any) -> tuple[int, float, str]:
    number = isinstance(value, int | float)
    return (0 if number else 1, float(value) if number else 0.0, str(value))
