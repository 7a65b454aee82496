"""One thing varied, everything else the same: the points of a curve, beside the paper's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group, Result, group
from ramen.experiments.analysis.paper import Value
from ramen.experiments.analysis.paper_comparison import RULE, differs, obstacle
from ramen.experiments.analysis.scoring import Spread
from ramen.experiments.plan.variations import BATCH, NAMED
from ramen.experiments.tables.accuracy import emphasis, value_text
from ramen.experiments.tables.table import MARK, Cell, Column, Table, signed, without_empty_columns

LINES = ("clip", "ensemble", "entmin")  # references of the paper's figures


@dataclass(frozen=True)
class Point:
    """One value of what is varied: accuracy over seeds, and what the paper has there."""

    value: Any
    label: str
    mean: float
    deviation: float | None
    seeds: int
    reported: float | None
    reported_deviation: float | None = None

    @property
    def spread(self) -> Spread:
        """What was measured."""
        return Spread(self.mean, self.deviation, self.seeds)

    @property
    def printed(self) -> Value | None:
        """What the paper has."""
        return None if self.reported is None else Value(self.reported, self.reported_deviation)


@dataclass(frozen=True)
class Sweep:
    """A curve: points in rising order or in the paper's, and methods to draw as lines."""

    parameter: str
    method: str
    data: str
    model: str
    protocol: str
    points: list[Point]
    lines: dict[str, float] = field(default_factory=dict)  # accuracies by title
    note: str | None = None  # on the paper's curve, or why it is not there

    @classmethod
    def from_results(cls, results: Sequence[Result], parameter: str, method: str = "ramen") -> "Sweep":
        """Put results of runs together; those of other methods become lines.

        Args:
            results: Runs of one stream; those of ``method`` differ in nothing but what is varied.
            parameter: A parameter of the method, ``batch``, or a name of ``varying.NAMED``.
            method: Whose parameter it is.
        """
        groups = group([result for result in results if result["kind"] == "run"])
        members = [one for one in groups if one.method == method]
        if not members:
            raise ValueError(f"results must hold runs of {method!r}, got none")
        varied = _varied(parameter)
        _require_alike(members, groups, varied)
        printed, note = _reported(members, parameter, varied)
        points = [_point(one, _value(one, parameter), printed) for one in members]
        first = members[0].experiment
        lines = {
            one.title: one.average.mean for one in groups if one.method in LINES and one.method != method
        }
        facts = (first["data"], first["model"], first["protocol"])
        return cls(parameter, method, *facts, _ordered(points, parameter), lines, note)


def sweep_table(sweep: Sweep) -> Table:
    """A row for each point, the references below."""
    ranks = emphasis([point.spread for point in sweep.points], decimals=2)
    rows = [
        (
            Cell(point.label),
            Cell(str(point.spread), rank),
            Cell(str(point.seeds)),
            Cell("" if point.printed is None else value_text(point.printed), "aside"),
            _difference(point),
        )
        for point, rank in zip(sweep.points, ranks, strict=True)
    ]
    rows += [
        (Cell(title, "aside"), Cell(f"{mean:.2f}"), Cell(""), Cell(""), Cell(""))
        for title, mean in sweep.lines.items()
    ]
    notes = [f"{MARK} {RULE}"] if any(point.reported is not None for point in sweep.points) else []
    notes += [sweep.note] if sweep.note else []
    head = Column(sweep.parameter, "left" if sweep.parameter in NAMED else "right")
    heads = (head, *map(Column, ("accuracy", "seeds", "paper", "difference")))
    where = f"{sweep.data}, {sweep.model}, {sweep.protocol} stream"
    title = f"{sweep.parameter} of {paper.title(sweep.method)}: {where}"
    return without_empty_columns(Table(title, heads, tuple(rows), tuple(notes), tuple(_records(sweep))))


def _records(sweep: Sweep) -> list[dict[str, Any]]:
    facts = {name: getattr(sweep, name) for name in ("data", "model", "protocol", "method", "parameter")}
    records = [
        {
            **facts,
            "value": point.value,
            "measured": point.mean,
            "deviation": point.deviation,
            "seeds": point.seeds,
            "paper": point.reported,
            "paper_deviation": point.reported_deviation,
            "beyond_deviation": None if point.printed is None else differs(point.spread, point.printed),
        }
        for point in sweep.points
    ]
    lines = [{**facts, "method": title, "measured": mean} for title, mean in sweep.lines.items()]
    return records + lines


def _difference(point: Point) -> Cell:
    if point.printed is None:
        return Cell("")
    return Cell(signed(point.mean - point.printed.mean), marked=differs(point.spread, point.printed))


def _varied(parameter: str) -> frozenset[str]:
    settings = NAMED[parameter].values() if parameter in NAMED else ({parameter: None},)
    return frozenset(name for one in settings for name in one)


def _facts(one: Group) -> dict[str, Any]:
    beside = {
        name: value for name, value in one.experiment.items() if name not in ("parameters", "seed", "label")
    }
    return {**beside, **one.parameters}


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
    if parameter not in NAMED:
        if parameter not in one.parameters:
            raise ValueError(f"method {one.method!r} has no parameter {parameter!r}")
        return one.parameters[parameter]
    everything = dict.fromkeys(_varied(parameter), True)
    for name, settings in NAMED[parameter].items():
        if all(one.parameters[key] == value for key, value in {**everything, **settings}.items()):
            return name
    chosen = ", ".join(f"{name}={one.parameters[name]}" for name in sorted(everything))
    raise ValueError(f"{parameter} has no variant with {chosen}")


def _point(one: Group, value: Any, printed: dict[Any, Value]) -> Point:
    found, average = printed.get(value), one.average
    return Point(
        value,
        f"{value:g}" if isinstance(value, float) else str(value),
        average.mean,
        average.deviation,
        average.seeds,
        None if found is None else found.mean,
        None if found is None else found.deviation,
    )


def _ordered(points: list[Point], parameter: str) -> list[Point]:
    if parameter in NAMED:
        order = list(NAMED[parameter])
        return sorted(points, key=lambda point: order.index(point.value))
    numbers = all(isinstance(point.value, int | float) for point in points)
    return sorted(points, key=lambda point: point.value if numbers else str(point.value))


def _reported(
    members: Sequence[Group], parameter: str, varied: frozenset[str]
) -> tuple[dict[Any, Value], str | None]:
    """The paper's curve by value, and what is to be said of it; nothing if this is not its experiment."""
    reason = next((reason for one in members if (reason := obstacle(one, varied))), None)
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
        return {}, f"The paper does not vary {parameter} there."
    said = f"The paper's: {curve.source}, read off the figure" + (f"; {curve.note}" if curve.note else "")
    return dict(curve.points), f"{said}."
