"""Accuracies in the shape of the paper's tables, the paper's numbers below or beside the measured ones."""

from collections.abc import Sequence
from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group, row_titles
from ramen.experiments.analysis.paper import Value
from ramen.experiments.analysis.paper_comparison import RULE, Beside, beside_paper, differs
from ramen.experiments.analysis.scoring import Difference, Spread
from ramen.experiments.tables.table import MARK, Cell, Column, Emphasis, Table, signed, without_empty_columns

_HEADS = {
    "gaussian_noise": "Gauss",
    "shot_noise": "Shot",
    "impulse_noise": "Impul",
    "defocus_blur": "Defoc",
    "glass_blur": "Glass",
    "motion_blur": "Motion",
    "zoom_blur": "Zoom",
    "snow": "Snow",
    "frost": "Frost",
    "fog": "Fog",
    "brightness": "Brit",
    "contrast": "Contr",
    "elastic_transform": "Elast",
    "pixelate": "Pixel",
    "jpeg_compression": "JPEG",
}
AVERAGE = "Avg."


def accuracy_table(groups: Sequence[Group]) -> Table:
    """A row for each method of one setting, a column for each domain, and below it the paper's row."""
    names = list(dict.fromkeys(name for group in groups for name in group.domains))
    besides = [beside_paper(group) for group in groups]
    measured = [{**group.domains, AVERAGE: group.average} for group in groups]
    emphases = {name: emphasis([values.get(name) for values in measured]) for name in (*names, AVERAGE)}
    rows = []
    for number, title in enumerate(row_titles(groups)):
        values, printed = measured[number], _printed(besides[number])
        cells = (
            _measured_cell(values.get(name), printed.get(name), emphases[name][number])
            for name in (*names, AVERAGE)
        )
        rows.append((Cell(title), *cells))
        if printed:
            cells = (_printed_cell(printed.get(name)) for name in (*names, AVERAGE))
            rows.append((Cell("  paper", "aside"), *cells))
    records = [_records(group, beside) for group, beside in zip(groups, besides, strict=True)]
    return Table(
        f"Accuracy in %: {describe_setting(groups[0])}",
        (Column("Method", "left"), *(Column(short_head(name)) for name in names), Column(AVERAGE)),
        tuple(rows),
        notes(groups, besides),
        tuple(record for part in records for record in part),
    )


def averages_table(groups: Sequence[Group]) -> Table:
    """Averages with deviations, the paper's beside them, the difference, and the gain over zero-shot."""
    besides = [beside_paper(group) for group in groups]
    ranks = emphasis([group.average for group in groups])
    rows = []
    for name, group, beside, rank in zip(row_titles(groups), groups, besides, ranks, strict=True):
        printed = None if beside.reported is None else beside.reported.average
        margin = group.over("scores", "difference", "margin").mean
        rows.append(
            (
                Cell(name),
                Cell(str(group.average), rank),
                Cell(str(group.average.seeds)),
                Cell("" if printed is None else value_text(printed), "aside"),
                difference_cell(group.average, printed),
                Cell(str(Difference(group.gain.mean, margin))),
            )
        )
    heads = ("accuracy", "seeds", "paper", "difference", "gain on zero-shot")
    gains = (
        "Gain on zero-shot: the same classifier on the same images without adaptation; \u00b1 is half the "
        "95 % interval of one run, from the images, the mean over seeds."
    )
    table = Table(
        f"Averages over domains: {describe_setting(groups[0])}",
        (Column("Method", "left"), *map(Column, heads)),
        tuple(rows),
        (*notes(groups, besides), gains),
        tuple(_average_record(group, beside) for group, beside in zip(groups, besides, strict=True)),
    )
    return without_empty_columns(table)


def emphasis(values: Sequence[Spread | None], decimals: int = 1) -> list[Emphasis | None]:
    """Which values of a column are best and second best, as they are printed; nothing for a single one.

    >>> emphasis([Spread(1.0, None, 1), Spread(3.01, None, 1), Spread(3.0, None, 1), Spread(2.0, None, 1)])
    [None, 'best', 'best', 'second']
    """
    shown = [None if value is None else round(value.mean, decimals) for value in values]
    ranks = sorted({value for value in shown if value is not None}, reverse=True)
    names: dict[float | None, Emphasis] = {}
    if len(ranks) > 1:
        names[ranks[0]] = "best"
    if len(ranks) > 2:
        names[ranks[1]] = "second"
    return [None if value is None else names.get(value) for value in shown]


def short_head(domain: str) -> str:
    """A domain's name above a column, short as in the paper."""
    return _HEADS.get(domain, domain.replace("_", " "))


def describe_setting(group: Group) -> str:
    """Data, model and stream in words."""
    experiment = group.experiment
    known = paper.setting(experiment["data"])
    data = known.title if known else experiment["data"]
    options = {**experiment["data_options"], **experiment["protocol_parameters"]}
    listed = "".join(f", {name} {value}" for name, value in options.items() if value is not None)
    templates = "" if experiment["templates"] == "ensemble" else f", templates {experiment['templates']}"
    return f"{data}, {experiment['model']}, {experiment['protocol']} stream{listed}{templates}"


def value_text(value: Value, decimals: int | None = None) -> str:
    """A reported number as it is printed.

    >>> value_text(Value(46.1, 0.1)), value_text(Value(46.04, 0.08)), value_text(Value(35.8))
    ('46.1 ± 0.1', '46.04 ± 0.08', '35.8')
    """
    if decimals is None:
        decimals = 1 if round(value.mean, 1) == value.mean and _tenths(value.deviation) else 2
    mean = f"{value.mean:.{decimals}f}"
    return mean if value.deviation is None else f"{mean} \u00b1 {value.deviation:.{decimals}f}"


def _tenths(deviation: float | None) -> bool:
    return deviation is None or round(deviation, 1) == deviation


def difference_cell(measured: Spread, printed: Value | None) -> Cell:
    """Measured less printed, marked where it goes beyond the deviations."""
    if printed is None:
        return Cell("")
    return Cell(signed(measured.mean - printed.mean), marked=differs(measured, printed))


def notes(groups: Sequence[Group], besides: Sequence[Beside]) -> tuple[str, ...]:
    """What a table with the paper's numbers must say: what the mark means, what is missing and why."""
    said = [f"{MARK} {RULE}"] if any(beside.reported for beside in besides) else []
    reasons: dict[str, list[str]] = {}
    for name, beside in zip(row_titles(groups), besides, strict=True):
        if beside.reason is not None:
            reasons.setdefault(beside.reason, []).append(name)
        elif beside.reported is not None and beside.reported.note is not None:
            said.append(f"{name}, the paper's number ({beside.reported.source}): {beside.reported.note}.")
    for reason, names in reasons.items():
        who = "" if len(names) == len(groups) else f" of {', '.join(names)}"
        said.append(f"Without the paper's numbers{who}: {reason}.")
    return tuple(said)


def _printed(beside: Beside) -> dict[str, Value]:
    if beside.reported is None:
        return {}
    return {**beside.reported.domains, AVERAGE: beside.reported.average}


def _measured_cell(measured: Spread | None, printed: Value | None, rank: Emphasis | None) -> Cell:
    if measured is None:
        return Cell("")
    return Cell(f"{measured.mean:.1f}", rank, printed is not None and differs(measured, printed))


def _printed_cell(value: Value | None) -> Cell:
    return Cell("" if value is None else f"{value.mean:.1f}", "aside")


def group_record(group: Group) -> dict[str, Any]:
    """The part of a record that says what was measured."""
    experiment = group.experiment
    overrides = group.results[0]["overrides"]
    return {
        "data": experiment["data"],
        "model": experiment["model"],
        "protocol": experiment["protocol"],
        "method": group.method,
        "label": experiment["label"],
        "overrides": " ".join(f"{name}={value}" for name, value in overrides.items()),
        "batch": experiment["batch"],
        "seeds": len(group.seeds),
    }


def value_record(measured: Spread, printed: Value | None) -> dict[str, Any]:
    """The part of a record with the numbers."""
    return {
        "measured": measured.mean,
        "deviation": measured.deviation,
        "paper": None if printed is None else printed.mean,
        "paper_deviation": None if printed is None else printed.deviation,
        "difference": None if printed is None else measured.mean - printed.mean,
        "beyond_deviation": None if printed is None else differs(measured, printed),
    }


def _records(group: Group, beside: Beside) -> list[dict[str, Any]]:
    printed = _printed(beside)
    values = {**group.domains, AVERAGE: group.average}
    return [
        {
            **group_record(group),
            "domain": "average" if name == AVERAGE else name,
            **value_record(value, printed.get(name)),
            "without_paper": beside.reason,
        }
        for name, value in values.items()
    ]


def _average_record(group: Group, beside: Beside) -> dict[str, Any]:
    printed = None if beside.reported is None else beside.reported.average
    return {
        **group_record(group),
        **value_record(group.average, printed),
        "zero_shot": group.zero_shot.mean,
        "gain": group.gain.mean,
        "gain_margin": group.over("scores", "difference", "margin").mean,
        "without_paper": beside.reason,
    }
