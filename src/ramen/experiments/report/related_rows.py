"""Which rows belong together: sweeps of a parameter, variants of a method, single and mixed streams."""

import json
from collections.abc import Sequence
from typing import Any

from ramen.experiments.analysis.grouping import Group
from ramen.experiments.analysis.sweep_curve import LINES, Sweep
from ramen.experiments.plan.variations import BATCH, NAMED

_LEAST_POINTS = 3  # two values are two rows of a table, three are a curve


def split_sweeps(groups: Sequence[Group]) -> tuple[list[Group], list[Sweep]]:
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
                sweeps.append(_sweep(parameter, members, groups))
                moved += members[1:]
    return [one for one in groups if not any(one is other for other in moved)], sweeps


def own_groups(groups: Sequence[Group]) -> dict[str, Group]:
    """For each method its first group that is no variant."""
    return {one.method: one for one in reversed(groups) if one.experiment["label"] is None}


def reference_lines(groups: Sequence[Group], methods: Sequence[str] = LINES) -> dict[str, float]:
    """Averages, by title, of the methods that others are compared with."""
    own = own_groups(groups)
    return {own[name].title: own[name].average.mean for name in methods if name in own}


def single_and_mixed(settings: Sequence[Sequence[Group]]) -> list[dict[str, list[Group]]]:
    """Groups of the same data and model whose domains come singly, and mixed; by protocol."""
    pairs: dict[str, dict[str, list[Group]]] = {}
    for groups in settings:
        protocol = groups[0].experiment["protocol"]
        if protocol in ("single", "mixed"):
            pairs.setdefault(_beside_protocol(groups[0]), {}).setdefault(protocol, list(groups))
    return [pair for pair in pairs.values() if len(pair) == 2]


def ablations(settings: Sequence[Sequence[Group]]) -> list[dict[str, dict[str, Group]]]:
    """Variants with a label, and last the method they vary: by label, then by protocol.

    Labels that begin alike, as in ``weights: none``, make a family of their own.
    """
    found: dict[tuple[str, str, str], dict[str, dict[str, Group]]] = {}
    for groups in settings:
        for one in groups:
            if one.experiment["label"] is not None:
                key = (_beside_protocol(one), one.method, _family(one))
                by_protocol = found.setdefault(key, {}).setdefault(one.title, {})
                by_protocol.setdefault(one.experiment["protocol"], one)
    for (place, method, _), variants in found.items():
        for groups in settings:
            own = own_groups(groups).get(method)
            if own is not None and _beside_protocol(own) == place:
                variants.setdefault(own.title, {}).setdefault(own.experiment["protocol"], own)
    return [dict(sorted(variants.items(), key=_variant_order)) for variants in found.values()]


def _variant_order(variant: tuple[str, dict[str, Group]]) -> tuple[bool, int]:
    """As the paper has them, others in front, the method itself last."""
    label, groups = variant
    itself = all(one.experiment["label"] is None for one in groups.values())
    known = [name for names in (NAMED["ablation"], NAMED["weights"]) for name in names]
    name = label.removeprefix("weights: ")
    return itself, known.index(name) if name in known else -1


def _family(one: Group) -> str:
    before, colon, _ = str(one.experiment["label"]).partition(":")
    return before if colon else ""


def _beside_protocol(group: Group) -> str:
    names = ("data", "model", "data_options", "templates")
    return json.dumps([group.experiment[name] for name in names], sort_keys=True)


def _changed(group: Group) -> bool:
    return any(result.get("overrides") for result in group.results)


def _facts(group: Group) -> dict[str, Any]:
    beside = {name: group.experiment.get(name) for name in (BATCH, "device", "dtype")}
    return {**group.parameters, **beside}


def _neighbours(base: Group, family: Sequence[Group]) -> list[tuple[str, Group]]:
    """The others that differ from ``base`` in one parameter, and in which."""
    found = []
    own = _facts(base)
    for other in family:
        its = _facts(other)
        differing = [name for name in {**own, **its} if own.get(name) != its.get(name)]
        if len(differing) == 1 and differing[0] in own.keys() & its.keys() - {"device", "dtype"}:
            found.append((differing[0], other))
    return found


def _sweep(parameter: str, members: Sequence[Group], groups: Sequence[Group]) -> Sweep:
    method = members[0].method
    lines = [own for name, own in own_groups(groups).items() if name in LINES and name != method]
    return Sweep.from_groups([*members, *lines], parameter, method)
