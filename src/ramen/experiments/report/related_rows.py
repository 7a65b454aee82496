"""Related rows: sweeps of a parameter, variants of a method, single and mixed streams."""

import json
from collections.abc import Sequence
from typing import Any

from ramen.experiments.analysis.grouping import Group
from ramen.experiments.analysis.sweep_curve import REFERENCES, Sweep
from ramen.experiments.plan.variations import BATCH, VARIANTS

_LEAST_POINTS = 3  # two values stay rows of a table, three make a curve


def split_sweeps(groups: Sequence[Group]) -> tuple[list[Group], list[Sweep]]:
    """The groups that stay in a setting's tables, and the sweeps.

    A sweep is at least three groups of one method that differ in a single parameter. The group that all
    sweeps of a method share stays in the tables.
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


def unvaried_groups(groups: Sequence[Group]) -> dict[str, Group]:
    """For each method its first group that is not a variant."""
    return {one.method: one for one in reversed(groups) if one.experiment["label"] is None}


def reference_lines(groups: Sequence[Group], methods: Sequence[str] = REFERENCES) -> dict[str, float]:
    """Averages, by title, of the methods that others are compared with."""
    own = unvaried_groups(groups)
    return {own[name].title: own[name].average.mean for name in methods if name in own}


def single_and_mixed(settings: Sequence[Sequence[Group]]) -> list[dict[str, list[Group]]]:
    """Groups of the same data and model that ran with single and with mixed domains, by protocol."""
    pairs: dict[str, dict[str, list[Group]]] = {}
    for groups in settings:
        protocol = groups[0].experiment["protocol"]
        if protocol in ("single", "mixed"):
            pairs.setdefault(_all_but_protocol(groups[0]), {}).setdefault(protocol, list(groups))
    return [pair for pair in pairs.values() if len(pair) == 2]


def ablations(settings: Sequence[Sequence[Group]]) -> list[dict[str, dict[str, Group]]]:
    """Variants by label and protocol, and last the method that they are variants of.

    Labels with the same prefix, as in ``weights: none``, make a family of their own.
    """
    found: dict[tuple[str, str, str], dict[str, dict[str, Group]]] = {}
    for groups in settings:
        for one in groups:
            if one.experiment["label"] is not None:
                key = (_all_but_protocol(one), one.method, _family(one))
                by_protocol = found.setdefault(key, {}).setdefault(one.title, {})
                by_protocol.setdefault(one.experiment["protocol"], one)
    for (place, method, _), variants in found.items():
        for groups in settings:
            own = unvaried_groups(groups).get(method)
            if own is not None and _all_but_protocol(own) == place:
                variants.setdefault(own.title, {}).setdefault(own.experiment["protocol"], own)
    return [dict(sorted(variants.items(), key=_variant_order)) for variants in found.values()]


def _variant_order(variant: tuple[str, dict[str, Group]]) -> tuple[bool, int]:
    """The paper's order, unknown variants first, the method itself last."""
    label, groups = variant
    itself = all(one.experiment["label"] is None for one in groups.values())
    known = [name for names in (VARIANTS["ablation"], VARIANTS["weights"]) for name in names]
    name = label.removeprefix("weights: ")
    return itself, known.index(name) if name in known else -1


def _family(one: Group) -> str:
    before, colon, _ = str(one.experiment["label"]).partition(":")
    return before if colon else ""


def _all_but_protocol(group: Group) -> str:
    names = ("data", "model", "data_options", "templates")
    return json.dumps([group.experiment[name] for name in names], sort_keys=True)


def _changed(group: Group) -> bool:
    return any(result.get("overrides") for result in group.results)


def _facts(group: Group) -> dict[str, Any]:
    others = {name: group.experiment.get(name) for name in (BATCH, "device", "dtype")}
    return {**group.parameters, **others}


def _neighbours(base: Group, family: Sequence[Group]) -> list[tuple[str, Group]]:
    """The groups that differ from ``base`` in one parameter, with that parameter."""
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
    lines = [own for name, own in unvaried_groups(groups).items() if name in REFERENCES and name != method]
    return Sweep.from_groups([*members, *lines], parameter, method)
