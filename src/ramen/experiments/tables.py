"""The tables of results: columns of numbers, made of rows over seeds, with the paper's beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pandas as pd

from ramen.experiments import paper
from ramen.experiments.paper import RULE, Value, differs
from ramen.experiments.render import MARK, WORDS, Column, Table
from ramen.experiments.results import Result, Rows, parameters, row_title, setting_key
from ramen.experiments.significance import LEVEL, holm, mean_ranks, paired_p, worst_tenth
from ramen.experiments.variations import VARIANTS

REFERENCES = ("clip", "ensemble", "entmin")  # of the paper's figures
_HEADS = "Gauss, Shot, Impul, Defoc, Glass, Motion, Zoom, Snow, Frost, Fog, Brit, Contr, Elast, Pixel, JPEG"
_SHORT = dict(zip((*paper.CORRUPTIONS, "average"), f"{_HEADS}, Avg.".split(", "), strict=True))
_MARK_NOTE = f"{MARK} {RULE}"
_SPREAD_NOTE = (
    "\u00b1 after an average is the standard deviation over seeds. Above zero-shot: the gain over the same "
    "classifier without adaptation on the same images; \u00b1 is half the 95 % confidence interval over the "
    "images of one run, averaged over seeds."
)
_RANKING_NOTE = (
    "Tests: Student's paired test over seeds, two-sided, at 5 % after Holm's correction for the number of "
    "rows; with few seeds only large and steady differences pass. Mean rank: over all domains and seeds, 1 "
    "is best. Last tenth and worst windows: accuracy over the end of the stream, and over its worst tenth."
)
_CHANGES_NOTE = (
    "Repaired: zero-shot is wrong, the method is right; broken: the other way round. Refused: answered "
    "zero-shot because something about the image was not finite. Images and refused count all seeds."
)
_CHANGES = ("both_right", "repaired", "broken", "both_wrong")
_CERTAINTY = {  # keys of results, the headings of their columns, and what they are
    "ece_mass": (
        "Calibration error by mass, %",
        "expected calibration error, 15 bins of equally many images",
    ),
    "nll": ("NLL", "the mean negative logarithm of the right class's probability"),
    "brier": ("Brier", "the mean squared distance of probabilities and right answers"),
    "aurc": ("AURC, %", "the area under the curve of risk and coverage: the mean error of the surest images"),
}
_MIB = 2**20

# -- columns and records that tables share ------------------------------------------------------------------


def name_column(rows: Rows) -> Column:
    """The names of rows, on a page linked to their settings."""
    return Column("Method", rows.names, WORDS, links=_links(rows, rows.names))


def _links(rows: Rows, texts: Sequence[str]) -> list[list[tuple[str, str]]] | None:
    """Texts that lead to the settings of rows, on a page."""
    return None if rows.anchors is None else [[pair] for pair in zip(texts, rows.anchors, strict=True)]


def seeds_column(rows: Rows) -> Column:
    """How many seeds there are; on a page the seeds themselves, each linked to its run."""
    counts = [len(seeds) for seeds in rows.seeds]
    if rows.anchors is None:
        return Column("Seeds", counts, "d")
    linked = [
        [(str(seed), f"{anchor}-seed{seed}") for seed in seeds]
        for seeds, anchor in zip(rows.seeds, rows.anchors, strict=True)
    ]
    listed = [" ".join(map(str, seeds)) for seeds in rows.seeds]
    return Column("Seeds", listed, WORDS, texts=list(map(str, counts)), links=linked)


def average_column(rows: Rows) -> Column:
    """Average accuracies, the best ones standing out."""
    hint = "the mean of the domains' accuracies, in percent"
    return score_column(rows, "Average", "scores.average", ranked=True, hint=hint)


def score_column(
    rows: Rows, head: str, numbers: str | pd.Series, form: str = ".2f", **options: Any
) -> Column:
    """Means and deviations over seeds of a number of each run."""
    return Column(head, rows.over(numbers), form, rows.over(numbers, "std"), **options)


def gain_column(rows: Rows) -> Column:
    """Points above zero-shot on the same images, with the margin of one run."""
    points, margins = (rows.over(f"scores.difference.{name}") for name in ("points", "margin"))
    hint = "in points, paired on the same images"
    return Column("Above zero-shot", points, "+z.2f", margins, what="margin", hint=hint)


def time_column(rows: Rows) -> Column:
    """Milliseconds per image."""
    return score_column(rows, "ms per image", "cost.ms_an_image", ",.2f", hint="in predict")


def calibration_column(rows: Rows) -> Column:
    """The calibration error in percent."""
    hint = "expected calibration error, 15 bins"
    return score_column(rows, "Calibration error, %", "scores.calibration_error", hint=hint)


def paper_column(
    values: Sequence[Value | None], hints: Sequence[str | None] | None = None, head: str = "Paper"
) -> Column:
    """Numbers of the paper's, as they are printed."""
    return Column(
        head,
        [None if value is None else value.mean for value in values],
        spread=[None if value is None else value.deviation for value in values],
        texts=[None if value is None else str(value) for value in values],
        aside=True,
        hint="the average that the paper reports",
        hints=hints,
    )


def _beside(rows: Rows, path: str, printed: Sequence[Value | None]) -> pd.DataFrame:
    """Measured numbers and the paper's, and whether they differ by more than the deviations explain."""
    found = pd.DataFrame({"measured": rows.over(path), "deviation": rows.over(path, "std")})
    found["paper"] = pd.Series([value and value.mean for value in printed], dtype=float)
    found["paper_deviation"] = pd.Series([value and value.deviation for value in printed], dtype=float)
    found["difference"] = found["measured"] - found["paper"]
    found["beyond_deviation"] = [
        value and differs(mean, deviation, len(seeds), value)
        for mean, deviation, seeds, value in zip(
            found["measured"], found["deviation"], rows.seeds, printed, strict=True
        )
    ]
    return found


def _difference_column(found: pd.DataFrame, reasons: Sequence[str | None]) -> Column:
    """Measured minus printed; on a page each says why it is marked, or why it is missing."""
    marked = [bool(beyond) for beyond in found["beyond_deviation"]]
    hints = [RULE if mark else reason for mark, reason in zip(marked, reasons, strict=True)]
    hint = "measured minus the paper's"
    return Column("Difference", found["difference"], "+z.2f", marked=marked, hint=hint, hints=hints)


def source(values: Mapping[str, Value], reason: str | None) -> str | None:
    """Where the paper has its average, or why there is none."""
    one = values.get("average")
    if one is None:
        return reason
    return f"{one.source}: {one.note}" if one.note else one.source


def _paper_notes(rows: Rows, printed: Sequence[tuple[dict[str, Value], str | None]]) -> list[str]:
    """What a table with the paper's numbers must say: what the mark means, what is missing and why."""
    notes = [_MARK_NOTE] if any(values for values, _ in printed) else []
    reasons: dict[str, list[str]] = {}
    for name, (values, reason) in zip(rows.names, printed, strict=True):
        if reason is not None:
            reasons.setdefault(reason, []).append(name)
        elif values["average"].note:
            average = values["average"]
            notes.append(f"{name}, the paper's number ({average.source}): {average.note}.")
    for reason, names in reasons.items():
        of_whom = "" if len(names) == len(rows) else f" for {', '.join(names)}"
        notes.append(f"Without the paper's numbers{of_whom}: {reason}.")
    return notes


def _numbers(rows: Rows, **columns: Any) -> pd.DataFrame:
    """What each row is of, and these numbers of it."""
    names = ("data", "model", "protocol", "method", "label")
    table = pd.DataFrame({name: pd.Series(rows.facts(name), dtype=object) for name in names})
    overrides = [" ".join(f"{key}={value}" for key, value in one["overrides"].items()) for one in rows.firsts]
    counts = [len(seeds) for seeds in rows.seeds]
    return table.assign(overrides=overrides, batch=rows.facts("batch"), seeds=counts, **columns)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Its rows in plain values, for programs."""
    found: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    return found


# -- accuracy -----------------------------------------------------------------------------------------------


def accuracy_table(rows: Rows) -> Table:
    """The paper's layout: one row per method, one column per domain, and the paper's row below each."""
    printed = [paper.beside(first) for first in rows.firsts]
    lines = [
        (row, its) for row, (values, _) in enumerate(printed) for its in (False, True)[: 1 + bool(values)]
    ]
    columns = [Column("Method", ["  paper" if its else rows.names[row] for row, its in lines], WORDS)]
    parts = []
    for name in (*rows.domains, "average"):
        path = "scores.average" if name == "average" else f"scores.domains.{name}"
        found = _beside(rows, path, [values.get(name) for values, _ in printed])
        shown = [found["paper" if its else "measured"][row] for row, its in lines]
        marked = [bool(found["beyond_deviation"][row]) and not its for row, its in lines]
        head = _SHORT.get(name, name.replace("_", " "))
        columns.append(Column(head, shown, ".1f", ranked=True, marked=marked))
        reasons = [reason for _, reason in printed]
        parts.append(_numbers(rows, domain=name, **found, without_paper=reasons).dropna(subset="measured"))
    return Table(
        f"Accuracy in %: {rows.setting}",
        columns,
        _paper_notes(rows, printed),
        _records(pd.concat(parts).sort_index(kind="stable")),
        aside=[its for _, its in lines],
    )


def averages_table(rows: Rows, *, with_domains: bool = False) -> Table:
    """Averages with deviations, the gain over zero-shot, and the paper's averages.

    Args:
        rows: The methods.
        with_domains: Add a column per domain.
    """
    printed = [paper.beside(first) for first in rows.firsts]
    values, reasons = [one.get("average") for one, _ in printed], [reason for _, reason in printed]
    found = _beside(rows, "scores.average", values)
    columns = [
        name_column(rows),
        average_column(rows),
        gain_column(rows),
        paper_column(values, [source(*one) for one in printed]),
        _difference_column(found, reasons),
        seeds_column(rows),
    ]
    if with_domains:
        columns += [
            score_column(rows, name.replace("_", " "), f"scores.domains.{name}", ".1f", ranked=True)
            for name in rows.domains
        ]
    numbers = _numbers(
        rows,
        **found,
        zero_shot=rows.over("scores.zero_shot.average"),
        gain=rows.over("scores.difference.points"),
        gain_margin=rows.over("scores.difference.margin"),
        without_paper=reasons,
    )
    title = f"Averages over domains: {rows.setting}"
    notes = [*_paper_notes(rows, printed), _SPREAD_NOTE]
    return Table(title, columns, notes, _records(numbers), methods=rows.names).trimmed()


def summary_table(rows: Rows) -> Table:
    """What a command shows of its own runs: one row per method."""
    columns = [
        name_column(rows),
        average_column(rows),
        gain_column(rows),
        *(Column(name.capitalize(), rows.over(f"scores.changes.{name}"), ",.0f") for name in _CHANGES[1:3]),
        calibration_column(rows),
        time_column(rows),
        seeds_column(rows),
    ]
    return Table("", columns)


# -- who wins -----------------------------------------------------------------------------------------------


def ranking_table(rows: Rows) -> Table:
    """Tests over seeds, mean ranks, worst domains, the end of the stream, time."""
    averages = rows.over("scores.average")
    best = int(averages.fillna(0).idxmax())
    scores, above = (
        rows.runs.pivot(index="experiment.seed", columns="row", values=f"scores.{path}").astype(float)
        for path in ("average", "difference.points")
    )
    gains, gain_ps = _tested(above)
    lags, lag_ps = _tested(scores.sub(scores[best], axis="index"))
    than_best = [_verdict(*pair, "better", "tie", "worse") for pair in zip(lags, lag_ps, strict=True)]
    if len(rows) > 1:
        than_best[best] = "best"
    than_zero_shot = [
        _verdict(*pair, "better", "no different", "worse") for pair in zip(gains, gain_ps, strict=True)
    ]
    ranks = mean_ranks(
        [
            {
                (one["experiment"]["seed"], name): value
                for one in group
                for name, value in one["scores"]["domains"].items()
            }
            for group in rows.groups
        ]
    )
    domains = pd.DataFrame({name: rows.over(f"scores.domains.{name}") for name in rows.domains})
    lowest, where = domains.min(axis="columns"), domains.idxmin(axis="columns")
    # one seed has no worst: its average says it already
    worst_seeds = [
        worst_tenth(scores[row].dropna().tolist()) if len(seeds) > 1 else None
        for row, seeds in enumerate(rows.seeds)
    ]
    columns = [
        name_column(rows),
        average_column(rows),
        Column("Than zero-shot", gain_ps, WORDS, texts=than_zero_shot, hint="tested over seeds"),
        Column("Than the best", lag_ps, WORDS, texts=than_best, hint="tested over seeds in common"),
        Column("Mean rank", ranks, hint="over domains and seeds"),
        Column(
            "Worst domain",
            lowest,
            WORDS,
            texts=[f"{value:.2f} {name}" for value, name in zip(lowest, where, strict=True)],
        ),
        Column("Worst seed", worst_seeds, hint="the mean of the worst tenth of seeds, at least one"),
        score_column(rows, "Last tenth", "scores.tail.last"),
        score_column(rows, "Worst windows", "scores.tail.worst"),
        time_column(rows),
        seeds_column(rows),
    ]
    numbers = _numbers(
        rows,
        average=averages,
        best=[row == best for row in range(len(rows))],
        worst_domain=where,
        worst_domain_accuracy=lowest,
        worst_seeds=worst_seeds,
        last_tenth=rows.over("scores.tail.last"),
        worst_windows=rows.over("scores.tail.worst"),
        ms_an_image=rows.over("cost.ms_an_image"),
        gain=gains,
        gain_p=gain_ps,
        behind_best=lags,
        behind_best_p=lag_ps,
        mean_rank=ranks,
    )
    return Table(f"Who wins: {rows.setting}", columns, [_RANKING_NOTE], _records(numbers)).trimmed()


def _tested(differences: pd.DataFrame) -> tuple[list[float], list[float | None]]:
    """The mean difference of each row over its seeds, and p-values that allow for the number of tests.

    A row that is never different is not tested.
    """
    rows = [differences[row].dropna().tolist() for row in differences]
    adjusted = holm([paired_p(values) if any(values) else None for values in rows])
    return [fmean(values) if values else 0.0 for values in rows], adjusted


def _verdict(points: float, p: float | None, better: str, same: str, worse: str) -> str:
    """A verdict in words; nothing without a test."""
    if p is None:
        return ""
    word = same if p >= LEVEL else better if points > 0 else worse
    return f"{word} (p {'< 0.001' if p < 0.001 else f'{p:.3f}'})"


# -- cost ---------------------------------------------------------------------------------------------------

_Part = tuple[list[Column], list[str], pd.DataFrame]  # columns, notes, and the numbers of each row


def time_table(rows: Rows) -> Table:
    """Milliseconds per image, also as multiples of one forward pass, with the paper's."""
    columns, notes, numbers = _time(rows)
    hardware = ", ".join(sorted(set(numbers["hardware"])))
    note = f"Measured on {hardware}: the time of predictions, without reading and preprocessing."
    columns = [name_column(rows), *columns]
    return Table(f"Time: {rows.setting}", columns, [note, *notes], _records(numbers)).trimmed()


def memory_table(rows: Rows) -> Table:
    """Peaks of memory, and the most that a method keeps of the stream, with the paper's."""
    columns, notes, numbers = _memory(rows)
    note = (
        "Memory is in MiB, the largest of all seeds. Kept: the most that a method ever stores of the stream."
    )
    columns = [name_column(rows), *columns]
    return Table(f"Memory: {rows.setting}", columns, [note, *notes], _records(numbers)).trimmed()


def cost_table(rows: Rows) -> Table:
    """Time and memory in one table, with the seconds of each stage of a run."""
    times, time_notes, numbers = _time(rows)
    memory, memory_notes, _ = _memory(rows)
    stages = [
        Column(f"{name.replace('_', ' ')}, s", seconds, ",.1f", hint="seconds of a whole run")
        for name, seconds in stage_seconds(rows).items()
    ]
    others = [Column("Batch", rows.facts("batch"), "d"), Column("Hardware", list(numbers["hardware"]), WORDS)]
    note = (
        "Means over seeds; memory is in MiB, the largest of all seeds. Times on different hardware do not "
        "compare."
    )
    columns = [name_column(rows), *times, *memory, *stages, *others]
    notes = [note, *time_notes, *memory_notes]
    return Table(f"Time and memory: {rows.setting}", columns, notes, methods=rows.names).trimmed()


def stage_seconds(rows: Rows) -> pd.DataFrame:
    """Seconds of each stage, averaged over runs, by row."""
    names = dict.fromkeys(name for one in rows.firsts for name in one["cost"].get("seconds") or {})
    return pd.DataFrame({name: rows.over(f"cost.seconds.{name}") for name in names}, range(len(rows)))


def _time(rows: Rows) -> _Part:
    ms, methods = rows.over("cost.ms_an_image"), rows.facts("method")
    base = next((ms[methods.index(name)] for name in REFERENCES[:2] if name in methods), float("nan"))
    spent = pd.Series([_papers_cost(first)[0] for first in rows.firsts], dtype=float)
    one_pass = paper.seconds("clip")
    passes = [rows.over(f"cost.passes.{way}") for way in ("forward", "backward")]
    numbers = _numbers(
        rows,
        hardware=[_hardware(group) for group in rows.groups],
        ms_an_image=ms,
        times_zero_shot=ms / base,
        forward_passes=passes[0],
        backward_passes=passes[1],
        paper_ms_an_image=1000 * spent / paper.SETTINGS["cifar100c"].images,
        paper_times_zero_shot=spent / one_pass,
    )
    counted = passes[0].map("{:g}".format) + " / " + passes[1].map("{:g}".format)
    counted = counted.where(passes[0].notna() & passes[1].notna(), "")
    hint = "forward and backward passes of the encoder per image"
    columns = [
        time_column(rows),
        Column("x zero-shot", numbers["times_zero_shot"], ",.1f"),
        Column("Passes (F / B)", counted, WORDS, hint=hint),
        Column("Paper, ms", numbers["paper_ms_an_image"], ",.2f"),
        Column("Paper, x zero-shot", numbers["paper_times_zero_shot"], ",.1f"),
    ]
    note = "The paper's times: one V100, data loading included."
    return columns, [note] if spent.any() else [], numbers


def _memory(rows: Rows) -> _Part:
    peaks = pd.Series([_papers_cost(first)[1] for first in rows.firsts], dtype=float)
    numbers = _numbers(
        rows,
        hardware=[_hardware(group) for group in rows.groups],
        peak_device_mib=rows.over("cost.peak_device_bytes", "max") / _MIB,
        peak_host_mib=rows.over("cost.peak_host_bytes", "max") / _MIB,
        kept_mib=rows.over("cost.memory_bytes", "max") / _MIB,
        paper_peak_device_mib=peaks,
    )
    columns = [
        Column("Peak, device", numbers["peak_device_mib"], ",.0f"),
        Column("Peak, host", numbers["peak_host_mib"], ",.0f"),
        Column("Kept", numbers["kept_mib"], ",.1f", hint="what the method stores of the stream"),
        Column("Paper, device", peaks, ",.0f"),
    ]
    note = "The paper's memory: Table 7, or the page of the published code; fp16."
    return columns, [note] if peaks.any() else [], numbers


def _hardware(group: Sequence[Result]) -> str:
    found = [result.get("provenance", {}).get("hardware") or {} for result in group]
    names = dict.fromkeys(str(one.get("name") or one.get("device") or "unknown hardware") for one in found)
    return "; ".join(names)


def _papers_cost(result: Result) -> tuple[float | None, float | None]:
    """Seconds and MiB that the paper reports; a part of its stream is enough, as cost is per image."""
    experiment, setting = result["experiment"], paper.SETTINGS.get(result["experiment"]["data"])
    if (
        setting is None
        or paper.architecture(experiment["model"]) != setting.model
        or experiment["batch"] != setting.batch
        or experiment["label"] is not None
        or paper.other_parameters(experiment, frozenset({"placement"})) is not None
    ):
        return None, None
    data, method = experiment["data"], experiment["method"]
    place = parameters(result)["placement"] if method == "ramen" else method
    peaks = paper.values("mib", data) or paper.values("peak", data)
    mib = peaks.get(place, peaks.get("") if place == "encoder" else None)
    seconds = paper.seconds(method, place) if data == "cifar100c" else None
    return seconds, None if mib is None else mib.mean


# -- changed answers ----------------------------------------------------------------------------------------


def changes_table(rows: Rows) -> Table:
    """Repaired and broken answers in percent of the images, balanced accuracy, and how sure the runs were."""
    counts = pd.DataFrame({kind: rows.over(f"scores.changes.{kind}", "sum") for kind in _CHANGES}).astype(int)
    repaired, broken = (change_shares(rows, kind) for kind in ("repaired", "broken"))
    refused = rows.over("scores.refused", "sum").fillna(0).astype(int)
    right, wrong = rows.over(repaired), rows.over(broken)
    right_hint = "of all images: zero-shot is wrong, the method is right"
    wrong_hint = "of all images: zero-shot is right, the method is wrong"
    zero_shot = "scores.zero_shot.calibration_error"
    columns = [
        name_column(rows),
        Column("Images", counts.sum(axis="columns"), ",d"),
        score_column(rows, "Repaired, %", repaired, hint=right_hint),
        score_column(rows, "Broken, %", broken, hint=wrong_hint),
        score_column(rows, "Net, %", repaired - broken, "+z.2f"),
        Column("Repaired / broken", right / wrong.where(wrong != 0)),
        score_column(rows, "Balanced accuracy, %", "scores.balanced", hint="the mean over classes"),
        calibration_column(rows),
        score_column(rows, "Zero-shot's, %", zero_shot, hint="zero-shot's calibration error"),
        *(
            score_column(rows, head, f"scores.{key}", missing="\N{EN DASH}", hint=hint)
            for key, (head, hint) in _CERTAINTY.items()
        ),
        Column("Refused", refused, ",d"),
    ]
    known = {key: found for key in _CERTAINTY if (found := rows.over(f"scores.{key}")).any()}
    records = _records(_numbers(rows, **counts, refused=refused, **known))
    title = f"Changed answers: {rows.setting}"
    return Table(title, columns, [_CHANGES_NOTE], records, methods=rows.names).trimmed()


def change_shares(rows: Rows, kind: str) -> pd.Series:
    """Repaired or broken images of each run, in percent of its images."""
    counts = pd.DataFrame({name: rows.column(f"scores.changes.{name}") for name in _CHANGES})
    return 100 * counts[kind] / counts.sum(axis="columns").clip(lower=1)


# -- sweeps -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One value of what is varied, the accuracy with it, and the paper's."""

    value: Any
    label: str
    mean: float
    deviation: float | None = None
    seeds: int = 1
    printed: Value | None = None


@dataclass(frozen=True)
class Sweep:
    """A curve: points in ascending order or in the paper's, and methods to draw as lines."""

    parameter: str
    method: str
    data: str
    model: str
    protocol: str
    points: list[Point]
    lines: Mapping[str, float] = field(default_factory=dict)  # accuracies by title
    note: str | None = None  # about the paper's curve, or why there is none
    rows: Rows | None = None  # the points' own

    @property
    def title(self) -> str:
        """What was varied, where."""
        place = f"{self.data}, {self.model}, {self.protocol} stream"
        return f"{self.parameter} of {paper.title(self.method)}: {place}"


def sweep_of(rows: Rows, parameter: str, method: str = "ramen") -> Sweep:
    """The curve of a method's rows; the others become lines.

    Args:
        rows: Runs of one stream; those of ``method`` differ in nothing but what is varied.
        parameter: A parameter of the method, ``batch``, or a key of ``variations.VARIANTS``.
        method: The method whose parameter it is.
    """
    methods = rows.facts("method")
    own = [row for row, name in enumerate(methods) if name == method]
    if not own:
        raise ValueError(f"results must hold runs of {method!r}, got none")
    variants = VARIANTS.get(parameter, {})
    varied = frozenset(name for settings in variants.values() for name in settings) or frozenset({parameter})
    _require_alike(rows, own, varied)
    printed, note = _reported([rows.firsts[row] for row in own], parameter, varied)
    values = {row: _varied_value(rows.firsts[row], parameter, varied) for row in own}
    own.sort(key=lambda row: _order(values[row], list(variants)))
    averages, deviations = rows.over("scores.average"), rows.over("scores.average", "std")
    points = [
        Point(
            values[row],
            f"{values[row]:g}" if isinstance(values[row], float) else str(values[row]),
            averages[row],
            None if pd.isna(deviations[row]) else deviations[row],
            len(rows.seeds[row]),
            printed.get(values[row]),
        )
        for row in own
    ]
    others = [row for row, name in enumerate(methods) if name in REFERENCES and name != method]
    lines = {row_title(rows.firsts[row]): float(averages[row]) for row in others}
    data, model, protocol = (rows.facts(name)[own[0]] for name in ("data", "model", "protocol"))
    return Sweep(parameter, method, data, model, protocol, points, lines, note, rows.only(own))


def _order(value: Any, variants: Sequence[str]) -> tuple[bool, float, str]:
    """Variants in the paper's order; numbers by their size, then words such as "auto"."""
    number = variants.index(value) if value in variants else value
    return (False, number, "") if isinstance(number, int | float) else (True, 0, str(value))


def sweep_table(sweep: Sweep) -> Table:
    """One row per point, then one per method that it is compared with."""
    rows, points, lines = sweep.rows, sweep.points, sweep.lines
    assert rows is not None
    labels, printed = [point.label for point in points], [point.printed for point in points]
    values = [point.value if isinstance(point.value, int | float) else None for point in points]
    form = WORDS if sweep.parameter in VARIANTS else "s"
    found, blank = _beside(rows, "scores.average", printed), [None] * len(lines)
    names = Column(sweep.parameter, values, form, texts=labels, links=_links(rows, labels))
    others = [
        gain_column(rows),
        paper_column(printed),
        _difference_column(found, [None] * len(points)),
        time_column(rows),
        seeds_column(rows),
    ]
    columns = [
        names.longer(blank, [*lines]),
        average_column(rows).longer([*lines.values()]),
        *(column.longer(blank) for column in others),
    ]
    notes = [_MARK_NOTE] if any(printed) else []
    notes += [sweep.note] if sweep.note else []
    own = pd.Series([point.value for point in points], dtype=object)
    records = _records(_numbers(rows, parameter=sweep.parameter, value=own, **found))
    facts = {name: getattr(sweep, name) for name in ("data", "model", "protocol", "parameter")}
    records += [{**facts, "method": title, "measured": mean} for title, mean in lines.items()]
    aside = [False] * len(points) + [True] * len(lines)
    methods = [paper.title(sweep.method)] * len(points) + list(lines)
    return Table(sweep.title, columns, notes, records, aside, methods).trimmed()


def _facts(result: Result) -> dict[str, Any]:
    """What may be varied, by name: settings of the experiment and parameters of the method."""
    apart = ("parameters", "seed", "label")
    settings = {name: value for name, value in result["experiment"].items() if name not in apart}
    return {**settings, **parameters(result)}


def _require_alike(rows: Rows, own: Sequence[int], varied: frozenset[str]) -> None:
    first, key = _facts(rows.firsts[own[0]]), setting_key(rows.firsts[own[0]])
    for row in own:
        for name, value in _facts(rows.firsts[row]).items():
            if name not in varied and value != first.get(name):
                raise ValueError(
                    f"results must differ in {', '.join(sorted(varied))} alone, got {name} "
                    f"{first.get(name)!r} and {value!r}"
                )
    for one in rows.firsts:
        if setting_key(one) != key:
            raise ValueError(f"results must be of one stream and model, got another for {row_title(one)}")


def _varied_value(result: Result, parameter: str, varied: frozenset[str]) -> Any:
    own = _facts(result)
    if parameter not in VARIANTS:
        if parameter not in own:
            raise ValueError(f"method {own['method']!r} has no parameter {parameter!r}")
        return own[parameter]
    for name, settings in VARIANTS[parameter].items():
        if all(own[key] == value for key, value in {**dict.fromkeys(varied, True), **settings}.items()):
            return name
    chosen = ", ".join(f"{name}={own[name]}" for name in sorted(varied))
    raise ValueError(f"{parameter} has no variant with {chosen}")


def _reported(
    members: Sequence[Result], parameter: str, varied: frozenset[str]
) -> tuple[Mapping[Any, Value], str | None]:
    """The paper's accuracies by value, and a note on them; empty if this is not the paper's experiment."""
    reason = next((reason for one in members if (reason := paper.why_not_comparable(one, varied))), None)
    if reason is not None:
        return {}, f"Without the paper's numbers: {reason}."
    experiment = members[0]["experiment"]
    data, protocol = experiment["data"], experiment["protocol"]
    if paper.architecture(experiment["model"]) != paper.SETTINGS[data].model:
        return {}, f"The paper does not vary {parameter} with {experiment['model']}."
    if parameter == "ablation":
        found = paper.values("ablation", data, protocol=protocol)
        return found, "The paper's: Fig. 5, read off the figure."
    if parameter == "placement":
        return {}, "The paper's Table 7 has times and memory of these, no accuracies."
    if parameter == "weights" and protocol == "mixed":
        return paper.values("weights", data), "The paper's: Table 8."
    points = paper.curve(data, parameter, experiment["method"]) if protocol == "mixed" else {}
    if not points:
        return {}, f"The paper does not vary {parameter} in this setting."
    first = next(iter(points.values()))
    note = f"The paper's: {first.source}, read off the figure" + (f"; {first.note}" if first.note else "")
    return points, f"{note}."


MAKERS: Mapping[str, Callable[[Rows], Table]] = {
    "accuracy": accuracy_table,
    "averages": averages_table,
    "ranking": ranking_table,
    "time": time_table,
    "memory": memory_table,
    "changes": changes_table,
}
