"""Sweeps: the points of a curve along which one thing varies, with the paper's points."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group, Result, group
from ramen.experiments.analysis.paper import Value
from ramen.experiments.analysis.paper_comparison import why_not_comparable
from ramen.experiments.analysis.spread import Spread
from ramen.experiments.plan.variations import BATCH, VARIANTS

REFERENCES = ("clip", "ensemble", "entmin")  # references of the paper's figures


@dataclass(frozen=True)
class Point:
    """One value of what is varied: the runs with it, and the paper's accuracy."""

    value: Any
    label: str
    group: Group
    reported: float | None = None
    reported_deviation: float | None = None

    @property
    def mean(self) -> float:
        """The average accuracy over seeds."""
        return self.spread.mean

    @property
    def deviation(self) -> float | None:
        """Its deviation over seeds."""
        return self.spread.deviation

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return self.spread.seeds

    @property
    def spread(self) -> Spread:
        """The measured accuracy over seeds."""
        return self.group.average

    @property
    def printed(self) -> Value | None:
        """The paper's accuracy."""
        return None if self.reported is None else Value(self.reported, self.reported_deviation)


@dataclass(frozen=True)
class Sweep:
    """A curve: points in ascending order or in the paper's, and methods to draw as lines."""

    parameter: str
    method: str
    data: str
    model: str
    protocol: str
    points: list[Point]
    lines: dict[str, float] = field(default_factory=dict)  # accuracies by title
    note: str | None = None  # about the paper's curve, or why there is none

    @classmethod
    def from_results(cls, results: Sequence[Result], parameter: str, method: str = "ramen") -> "Sweep":
        """As ``from_groups``, of results of runs."""
        return cls.from_groups(
            group([result for result in results if result["kind"] == "run"]), parameter, method
        )

    @classmethod
    def from_groups(cls, groups: Sequence[Group], parameter: str, method: str = "ramen") -> "Sweep":
        """The points are the groups of ``method``; other methods become lines.

        Args:
            groups: Runs of one stream; those of ``method`` differ in nothing but what is varied.
            parameter: A parameter of the method, ``batch``, or a key of ``variations.VARIANTS``.
            method: The method whose parameter it is.
        """
        members = [one for one in groups if one.method == method]
        if not members:
            raise ValueError(f"results must hold runs of {method!r}, got none")
        varied = _varied(parameter)
        _require_alike(members, groups, varied)
        printed, note = _reported(members, parameter, varied)
        points = [_point(one, _value(one, parameter), printed) for one in members]
        first = members[0].experiment
        lines = {
            one.title: one.average.mean for one in groups if one.method in REFERENCES and one.method != method
        }
        facts = (first["data"], first["model"], first["protocol"])
        return cls(parameter, method, *facts, _ordered(points, parameter), lines, note)


def _varied(parameter: str) -> frozenset[str]:
    settings = VARIANTS[parameter].values() if parameter in VARIANTS else ({parameter: None},)
    return frozenset(name for one in settings for name in one)


def _facts(one: Group) -> dict[str, Any]:
    others = {
        name: value for name, value in one.experiment.items() if name not in ("parameters", "seed", "label")
    }
    return {**others, **one.parameters}


def _require_alike(members: Sequence[Group], groups: Sequence[Group], varied: frozenset[str]) -> None:
    first = _facts(members[0])
    for one in members[1:]:
        for name, value in _facts(one).items():
            if name not in varied and value != first.get(name):
                raise ValueError(
                    f"results must differ in {', '.join(sorted(varied))} alone, got {name} "
                    f"{first.get(name)!r} and {value!r}"
                )
    for one in groups:
        if one.setting != members[0].setting:
            raise ValueError(f"results must be of one stream and model, got another for {one.title}")


def _value(one: Group, parameter: str) -> Any:
    if parameter == BATCH:
        return one.experiment["batch"]
    if parameter not in VARIANTS:
        if parameter not in one.parameters:
            raise ValueError(f"method {one.method!r} has no parameter {parameter!r}")
        return one.parameters[parameter]
    everything = dict.fromkeys(_varied(parameter), True)
    for name, settings in VARIANTS[parameter].items():
        if all(one.parameters[key] == value for key, value in {**everything, **settings}.items()):
            return name
    chosen = ", ".join(f"{name}={one.parameters[name]}" for name in sorted(everything))
    raise ValueError(f"{parameter} has no variant with {chosen}")


def _point(one: Group, value: Any, printed: dict[Any, Value]) -> Point:
    found = printed.get(value)
    return Point(
        value,
        f"{value:g}" if isinstance(value, float) else str(value),
        one,
        None if found is None else found.mean,
        None if found is None else found.deviation,
    )


def _ordered(points: list[Point], parameter: str) -> list[Point]:
    if parameter in VARIANTS:
        order = list(VARIANTS[parameter])
        return sorted(points, key=lambda point: order.index(point.value))

    def place(point: Point) -> tuple[int, float, str]:
        """Numbers by their size, then words such as "auto"."""
        number = isinstance(point.value, int | float)
        return (0, point.value, "") if number else (1, 0, str(point.value))

    return sorted(points, key=place)


def _reported(
    members: Sequence[Group], parameter: str, varied: frozenset[str]
) -> tuple[dict[Any, Value], str | None]:
    """The paper's accuracies by value, and a note on them; empty if this is not the paper's experiment."""
    reason = next((reason for one in members if (reason := why_not_comparable(one, varied))), None)
    if reason is not None:
        return {}, f"Without the paper's numbers: {reason}."
    experiment = members[0].experiment
    data, main = experiment["data"], paper.setting(experiment["data"])
    protocol, method = experiment["protocol"], members[0].method
    if main is None or paper.architecture(experiment["model"]) != main.model:
        return {}, f"The paper does not vary {parameter} with {experiment['model']}."
    if parameter == "ablation":
        return dict(paper.reported_ablation(data, protocol)), "The paper's: Fig. 5, read off the figure."
    if parameter == "placement":
        return {}, "The paper's Table 7 has times and memory of these, no accuracies."
    if parameter == "weights" and protocol == "mixed":
        return dict(paper.reported_weights(data)), "The paper's: Table 8."
    curve = paper.reported_sweep(data, parameter, method) if protocol == "mixed" else None
    if curve is None:
        return {}, f"The paper does not vary {parameter} in this setting."
    note = f"The paper's: {curve.source}, read off the figure" + (f"; {curve.note}" if curve.note else "")
    return dict(curve.points), f"{note}."
