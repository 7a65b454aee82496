"""The tables of results: columns of numbers, made of rows over seeds, with the paper's beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from ramen.experiments import paper
from ramen.experiments.paper import RULE, Value, differs
from ramen.experiments.render import MARK, WORDS, Column, Table
from ramen.experiments.results import Result, Rows, parameters, row_title, setting_key
from ramen.experiments.significance import LEVEL, holm, mean_ranks, paired_p, worst_tenth
from ramen.experiments.variations import BATCH, VARIANTS

REFERENCES = ("clip", "ensemble", "entmin")  # of the paper's figures
AVERAGE = "Avg."
_SHORT = dict(
    zip(
        paper.CORRUPTIONS,
        [
            "Gauss",
            "Shot",
            "Impul",
            "Defoc",
            "Glass",
            "Motion",
            "Zoom",
            "Snow",
            "Frost",
            "Fog",
            "Brit",
            "Contr",
            "Elast",
            "Pixel",
            "JPEG",
        ],
        strict=True,
    )
)
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

# -- columns that tables share ------------------------------------------------------------------------------


def name_column(rows: Rows) -> Column:
    """The names of rows, on a page linked to their settings."""
    return Column("Method", rows.names, WORDS, links=links(rows, rows.names))


def links(rows: Rows, texts: Sequence[str]) -> list[list[tuple[str, str]]] | None:
    """Texts that lead to the settings of rows, on a page."""
    if rows.anchors is None:
        return None
    return [[pair] for pair in zip(texts, rows.anchors, strict=True)]


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


def score_column(rows: Rows, head: str, path: str, form: str = ".2f", **options: Any) -> Column:
    """Means and deviations over seeds."""
    return Column(head, rows.over(path), form, rows.over(path, "std"), **options)


def gain_column(rows: Rows) -> Column:
    """Points above zero-shot on the same images, with the margin of one run."""
    points, margins = (rows.over(f"scores.difference.{name}") for name in ("points", "margin"))
    hint = "in points, paired on the same images"
    return Column("Above zero-shot", points, "+z.2f", margins, what="margin", hint=hint)


def time_column(rows: Rows) -> Column:
    """Milliseconds per image."""
    return score_column(rows, "ms per image", "cost.ms_an_image", ",.2f", hint="in predict")


def paper_column(values: Sequence[Value | None], hints: Sequence[str | None] | None = None) -> Column:
    """Numbers of the paper's, as they are printed."""
    return Column(
        "Paper",
        [None if value is None else value.mean for value in values],
        spread=[None if value is None else value.deviation for value in values],
        texts=["" if value is None else str(value) for value in values],
        aside=True,
        hint="the average that the paper reports",
        hints=hints,
    )


def _difference_column(
    means: Sequence[float | None],
    deviations: Sequence[float | None],
    seeds: Sequence[int],
    values: Sequence[Value | None],
    hints: Sequence[str | None] | None = None,
) -> Column:
    """Measured minus printed, marked if it goes beyond the deviations."""
    points, marked = [], []
    for mean, deviation, count, value in zip(means, deviations, seeds, values, strict=True):
        known = mean is not None and value is not None
        points.append(mean - value.mean if known else None)  # type: ignore[operator, union-attr]
        marked.append(known and differs(mean, deviation, count, value))  # type: ignore[arg-type]
    shown = [
        RULE if mark else other for mark, other in zip(marked, hints or [None] * len(marked), strict=True)
    ]
    hint = "measured minus the paper's"
    return Column("Difference", points, "+z.2f", marked=marked, hint=hint, hints=shown)


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


# -- records ------------------------------------------------------------------------------------------------


def _facts(result: Result, seeds: Sequence[int]) -> dict[str, Any]:
    """The part of a record that says what was measured."""
    experiment = result["experiment"]
    return {
        **{name: experiment[name] for name in ("data", "model", "protocol", "method", "label")},
        "overrides": " ".join(f"{name}={value}" for name, value in result["overrides"].items()),
        "batch": experiment["batch"],
        "seeds": len(seeds),
    }


def _records(rows: Rows, **columns: Sequence[Any]) -> list[dict[str, Any]]:
    facts = [_facts(*pair) for pair in zip(rows.firsts, rows.seeds, strict=True)]
    return [
        {**fact, **{name: values[place] for name, values in columns.items()}}
        for place, fact in enumerate(facts)
    ]


def _beside(mean: float, deviation: float | None, seeds: int, printed: Value | None) -> dict[str, Any]:
    """The part of a record with a measured number and the paper's."""
    return {
        "measured": mean,
        "deviation": deviation,
        "paper": printed and printed.mean,
        "paper_deviation": printed and printed.deviation,
        "difference": printed and mean - printed.mean,
        "beyond_deviation": printed and differs(mean, deviation, seeds, printed),
    }


# -- accuracy -----------------------------------------------------------------------------------------------


def accuracy_table(rows: Rows) -> Table:
    """The paper's layout: one row per method, one column per domain, and the paper's row below each."""
    paths = {**{name: f"scores.domains.{name}" for name in rows.domains}, "average": "scores.average"}
    means = {name: rows.over(path) for name, path in paths.items()}
    deviations = {name: rows.over(path, "std") for name, path in paths.items()}
    printed = [paper.beside(first) for first in rows.firsts]
    lines = [  # the row, and whether it is the paper's
        (row, its) for row in range(len(rows)) for its in ((False, True) if printed[row][0] else (False,))
    ]
    columns = [
        Column("Method", ["  paper" if its else rows.names[row] for row, its in lines], WORDS),
    ]
    records = []
    for name in paths:
        values = [one.get(name) for one, _ in printed]
        marked = [
            mean is not None and value is not None and differs(mean, deviation, len(seeds), value)
            for mean, deviation, seeds, value in zip(
                means[name], deviations[name], rows.seeds, values, strict=True
            )
        ]
        columns.append(
            Column(
                AVERAGE if name == "average" else _SHORT.get(name, name.replace("_", " ")),
                [values[row] and values[row].mean if its else means[name][row] for row, its in lines],  # type: ignore[union-attr]
                ".1f",
                ranked=True,
                marked=[marked[row] and not its for row, its in lines],
            )
        )
    for row, (first, seeds, (values_of, reason)) in enumerate(
        zip(rows.firsts, rows.seeds, printed, strict=True)
    ):
        for name in (*first["scores"]["domains"], "average"):
            mean = means[name][row]
            assert mean is not None
            records.append(
                {
                    **_facts(first, seeds),
                    "domain": name,
                    **_beside(mean, deviations[name][row], len(seeds), values_of.get(name)),
                    "without_paper": reason,
                }
            )
    title = f"Accuracy in %: {rows.setting}"
    return Table(title, columns, _paper_notes(rows, printed), records, aside=[its for _, its in lines])


def averages_table(rows: Rows, *, with_domains: bool = False) -> Table:
    """Averages with deviations, the gain over zero-shot, and the paper's averages.

    Args:
        rows: The methods.
        with_domains: Add a column per domain.
    """
    printed = [paper.beside(first) for first in rows.firsts]
    values = [one.get("average") for one, _ in printed]
    means, deviations = rows.over("scores.average"), rows.over("scores.average", "std")
    counts = [len(seeds) for seeds in rows.seeds]
    reasons = [reason for _, reason in printed]
    columns = [
        name_column(rows),
        average_column(rows),
        gain_column(rows),
        paper_column(values, [source(*one) for one in printed]),
        _difference_column(means, deviations, counts, values, reasons),
        seeds_column(rows),
    ]
    if with_domains:
        columns += [
            score_column(rows, name.replace("_", " "), f"scores.domains.{name}", ".1f", ranked=True)
            for name in rows.domains
        ]
    sides = [_beside(*one) for one in zip(means, deviations, counts, values, strict=True)]  # type: ignore[arg-type]
    records = _records(
        rows,
        **{name: [side[name] for side in sides] for name in sides[0]},
        zero_shot=rows.over("scores.zero_shot.average"),
        gain=rows.over("scores.difference.points"),
        gain_margin=rows.over("scores.difference.margin"),
        without_paper=reasons,
    )
    title = f"Averages over domains: {rows.setting}"
    notes = [*_paper_notes(rows, printed), _SPREAD_NOTE]
    return Table(title, columns, notes, records, methods=rows.names).trimmed()


def summary_table(rows: Rows) -> Table:
    """What a command shows of its own runs: one row per method."""
    counts = {name: rows.over(f"scores.changes.{name}") for name in ("repaired", "broken")}
    columns = [
        name_column(rows),
        average_column(rows),
        gain_column(rows),
        *(Column(name.capitalize(), values, ",.0f") for name, values in counts.items()),
        _calibration_column(rows),
        time_column(rows),
        seeds_column(rows),
    ]
    return Table("", columns)


# -- who wins -----------------------------------------------------------------------------------------------


def ranking_table(rows: Rows) -> Table:
    """Tests over seeds, mean ranks, worst domains, the end of the stream, time."""
    averages = rows.over("scores.average")
    best = max(range(len(rows)), key=lambda row: averages[row] or 0.0)
    scores = [
        dict(zip(*pair, strict=True)) for pair in zip(rows.seeds, rows.each("scores.average"), strict=True)
    ]
    behind = [
        [] if row == best else [own[seed] - scores[best][seed] for seed in own if seed in scores[best]]
        for row, own in enumerate(scores)
    ]
    gains, gain_ps = _verdicts(rows.each("scores.difference.points"))
    lags, lag_ps = _verdicts(behind)
    than_best = [_verdict(*pair, "better", "tie", "worse") for pair in zip(lags, lag_ps, strict=True)]
    if len(rows) > 1:
        than_best[best] = "best"
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
    domains = {name: rows.over(f"scores.domains.{name}") for name in rows.domains}
    worst = [
        min(
            ((value, name) for name, values in domains.items() if (value := values[row]) is not None),
            key=lambda pair: pair[0],  # the first of equal ones
        )
        for row in range(len(rows))
    ]
    # one seed has no worst: its average says it already
    worst_seeds = [worst_tenth(values) if len(values) > 1 else None for values in rows.each("scores.average")]
    columns = [
        name_column(rows),
        average_column(rows),
        Column(
            "Than zero-shot",
            gain_ps,
            WORDS,
            texts=[
                _verdict(*pair, "better", "no different", "worse")
                for pair in zip(gains, gain_ps, strict=True)
            ],
            hint="tested over seeds",
        ),
        Column("Than the best", lag_ps, WORDS, texts=than_best, hint="tested over seeds in common"),
        Column("Mean rank", ranks, hint="over domains and seeds"),
        Column(
            "Worst domain",
            [value for value, _ in worst],
            WORDS,
            texts=[f"{value:.2f} {name}" for value, name in worst],
        ),
        Column("Worst seed", worst_seeds, hint="the mean of the worst tenth of seeds, at least one"),
        score_column(rows, "Last tenth", "scores.tail.last"),
        score_column(rows, "Worst windows", "scores.tail.worst"),
        time_column(rows),
        seeds_column(rows),
    ]
    records = _records(
        rows,
        average=averages,
        best=[row == best for row in range(len(rows))],
        worst_domain=[name for _, name in worst],
        worst_domain_accuracy=[value for value, _ in worst],
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
    return Table(f"Who wins: {rows.setting}", columns, [_RANKING_NOTE], records).trimmed()


def _verdicts(differences: Sequence[Sequence[float]]) -> tuple[list[float], list[float | None]]:
    """Mean differences and p-values that allow for the number of rows that are tested.

    A row that is never different is not tested.
    """
    adjusted = holm([paired_p(values) if any(values) else None for values in differences])
    return [fmean(values) if values else 0.0 for values in differences], adjusted


def _verdict(points: float, p: float | None, better: str, same: str, worse: str) -> str:
    """A verdict in words; nothing without a test."""
    if p is None:
        return ""
    word = same if p >= LEVEL else better if points > 0 else worse
    return f"{word} (p {'< 0.001' if p < 0.001 else f'{p:.3f}'})"


# -- cost ---------------------------------------------------------------------------------------------------


def time_table(rows: Rows) -> Table:
    """Milliseconds per image, also as multiples of one forward pass, with the paper's."""
    columns, notes, records = _time(rows)
    hardware = ", ".join(sorted({str(record["hardware"]) for record in records}))
    note = f"Measured on {hardware}: the time of predictions, without reading and preprocessing."
    return Table(f"Time: {rows.setting}", [name_column(rows), *columns], [note, *notes], records).trimmed()


def memory_table(rows: Rows) -> Table:
    """Peaks of memory, and the most that a method keeps of the stream, with the paper's."""
    columns, notes, records = _memory(rows)
    note = (
        "Memory is in MiB, the largest of all seeds. Kept: the most that a method ever stores of the stream."
    )
    return Table(f"Memory: {rows.setting}", [name_column(rows), *columns], [note, *notes], records).trimmed()


def cost_table(rows: Rows) -> Table:
    """Time and memory in one table, with the seconds of each stage of a run."""
    times, time_notes, _ = _time(rows)
    memory, memory_notes, _ = _memory(rows)
    stages = [
        Column(f"{name.replace('_', ' ')}, s", values, ",.1f", hint="seconds of a whole run")
        for name, values in stage_seconds(rows).items()
    ]
    columns = [
        name_column(rows),
        *times,
        *memory,
        *stages,
        Column("Batch", rows.facts("batch"), "d"),
        Column("Hardware", [_hardware(group) for group in rows.groups], WORDS),
    ]
    note = (
        "Means over seeds; memory is in MiB, the largest of all seeds. Times on different hardware do not "
        "compare."
    )
    notes = [note, *time_notes, *memory_notes]
    return Table(f"Time and memory: {rows.setting}", columns, notes, methods=rows.names).trimmed()


def stage_seconds(rows: Rows) -> dict[str, list[float | None]]:
    """Seconds of each stage, averaged over runs, by row."""
    names = dict.fromkeys(name for one in rows.firsts for name in one["cost"].get("seconds") or {})
    return {name: rows.over(f"cost.seconds.{name}") for name in names}


def _time(rows: Rows) -> tuple[list[Column], list[str], list[dict[str, Any]]]:
    means, methods = rows.over("cost.ms_an_image"), rows.facts("method")
    base = next((means[methods.index(name)] for name in REFERENCES[:2] if name in methods), None)
    spent = [_paper_seconds(first) for first in rows.firsts]
    images, one_pass = paper.SETTINGS["cifar100c"].images, paper.seconds("clip")
    passes = [first["cost"]["passes"] or {} for first in rows.firsts]
    counts = [(one.get("forward"), one.get("backward")) for one in passes]
    records = _records(
        rows,
        hardware=[_hardware(group) for group in rows.groups],
        ms_an_image=means,
        times_zero_shot=[None if not base or mean is None else mean / base for mean in means],
        forward_passes=[forward for forward, _ in counts],
        backward_passes=[backward for _, backward in counts],
        paper_ms_an_image=[time and 1000 * time / images for time in spent],
        paper_times_zero_shot=[time and one_pass and time / one_pass for time in spent],
    )
    shown = ["" if None in pair else " / ".join(f"{count:g}" for count in pair) for pair in counts]
    hint = "forward and backward passes of the encoder per image"
    columns = [
        time_column(rows),
        _of(records, "times_zero_shot", "x zero-shot", ",.1f"),
        Column("Passes (F / B)", shown, WORDS, hint=hint),
        _of(records, "paper_ms_an_image", "Paper, ms", ",.2f"),
        _of(records, "paper_times_zero_shot", "Paper, x zero-shot", ",.1f"),
    ]
    note = "The paper's times: one V100, data loading included."
    return columns, [note] if any(spent) else [], records


def _memory(rows: Rows) -> tuple[list[Column], list[str], list[dict[str, Any]]]:
    def mib(name: str) -> list[float | None]:
        return [count if count is None else count / _MIB for count in rows.over(f"cost.{name}", "max")]

    peaks = [_paper_peak(first) for first in rows.firsts]
    records = _records(
        rows,
        hardware=[_hardware(group) for group in rows.groups],
        peak_device_mib=mib("peak_device_bytes"),
        peak_host_mib=mib("peak_host_bytes"),
        kept_mib=mib("memory_bytes"),
        paper_peak_device_mib=peaks,
    )
    columns = [
        _of(records, "peak_device_mib", "Peak, device", ",.0f"),
        _of(records, "peak_host_mib", "Peak, host", ",.0f"),
        _of(records, "kept_mib", "Kept", ",.1f", hint="what the method stores of the stream"),
        _of(records, "paper_peak_device_mib", "Paper, device", ",.0f"),
    ]
    note = "The paper's memory: Table 7, or the page of the published code; fp16."
    return columns, [note] if any(peaks) else [], records


def _of(records: Sequence[Mapping[str, Any]], name: str, head: str, form: str, **options: Any) -> Column:
    return Column(head, [record[name] for record in records], form, **options)


def _hardware(group: Sequence[Result]) -> str:
    found = [result.get("provenance", {}).get("hardware") or {} for result in group]
    names = dict.fromkeys(str(one.get("name") or one.get("device") or "unknown hardware") for one in found)
    return "; ".join(names)


def _placement(result: Result) -> str | None:
    """The name of its row in Table 7, if it is the paper's experiment on CIFAR-100-C, or a part of it."""
    experiment = result["experiment"]
    method = str(experiment["method"])
    return str(parameters(result)["placement"]) if method == "ramen" else method


def _paper_seconds(result: Result) -> float | None:
    if result["experiment"]["data"] != "cifar100c" or not _is_papers_experiment(result):
        return None
    return paper.seconds(result["experiment"]["method"], _placement(result))


def _paper_peak(result: Result) -> float | None:
    data = result["experiment"]["data"]
    if not _is_papers_experiment(result):
        return None
    found = paper.values("mib", data).get(str(_placement(result)))
    if found is None and result["experiment"]["method"] == "ramen" and _placement(result) == "encoder":
        found = paper.values("peak", data).get("")
    return None if found is None else found.mean


def _is_papers_experiment(result: Result) -> bool:
    """Whether the paper ran it; a part of the stream is enough, as cost is reported per image."""
    experiment, setting = result["experiment"], paper.SETTINGS.get(result["experiment"]["data"])
    return (
        setting is not None
        and paper.architecture(experiment["model"]) == setting.model
        and experiment["batch"] == setting.batch
        and experiment["label"] is None
        and paper.other_parameters(experiment, frozenset({"placement"})) is None
    )


# -- changed answers ----------------------------------------------------------------------------------------


def changes_table(rows: Rows) -> Table:
    """Repaired and broken answers in percent of the images, balanced accuracy, and how sure the runs were."""
    shares = {kind: change_shares(rows, kind) for kind in ("repaired", "broken")}
    net = [
        [up - down for up, down in zip(*pair, strict=True)]
        for pair in zip(shares["repaired"], shares["broken"], strict=True)
    ]
    means = {kind: [fmean(values) for values in found] for kind, found in shares.items()}
    ratios = [up / down if down else None for up, down in zip(*means.values(), strict=True)]
    counts = {kind: [sum(values) for values in rows.each(f"scores.changes.{kind}")] for kind in _CHANGES}
    refused = [0 if None in values else sum(values) for values in rows.each("scores.refused")]
    columns = [
        name_column(rows),
        Column("Images", [sum(parts) for parts in zip(*counts.values(), strict=True)], ",d"),
        _over("Repaired, %", shares["repaired"], "of all images: zero-shot is wrong, the method is right"),
        _over("Broken, %", shares["broken"], "of all images: zero-shot is right, the method is wrong"),
        _over("Net, %", net, None, "+z.2f"),
        Column("Repaired / broken", ratios),
        score_column(rows, "Balanced accuracy, %", "scores.balanced", hint="the mean over classes"),
        _calibration_column(rows),
        score_column(
            rows,
            "Zero-shot's, %",
            "scores.zero_shot.calibration_error",
            hint="zero-shot's calibration error",
        ),
        *(
            score_column(rows, head, f"scores.{key}", missing="\N{EN DASH}", hint=hint)
            for key, (head, hint) in _CERTAINTY.items()
        ),
        Column("Refused", refused, ",d"),
    ]
    known = {key: values for key in _CERTAINTY if any(values := rows.over(f"scores.{key}"))}
    records = _records(rows, **counts, refused=refused, **known)
    title = f"Changed answers: {rows.setting}"
    return Table(title, columns, [_CHANGES_NOTE], records, methods=rows.names).trimmed()


def change_shares(rows: Rows, kind: str) -> list[list[float]]:
    """Repaired or broken images of each run, in percent of its images."""
    return [
        [
            100 * run["scores"]["changes"][kind] / max(1, sum(run["scores"]["changes"].values()))
            for run in group
        ]
        for group in rows.groups
    ]


def _over(head: str, values: Sequence[Sequence[float]], hint: str | None, form: str = ".2f") -> Column:
    spread = [stdev(one) if len(one) > 1 else None for one in values]
    return Column(head, [fmean(one) for one in values], form, spread, hint=hint)


def _calibration_column(rows: Rows) -> Column:
    hint = "expected calibration error, 15 bins"
    return score_column(rows, "Calibration error, %", "scores.calibration_error", hint=hint)


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
    own = [row for row, name in enumerate(rows.facts("method")) if name == method]
    if not own:
        raise ValueError(f"results must hold runs of {method!r}, got none")
    changed = VARIANTS[parameter].values() if parameter in VARIANTS else ({parameter: None},)
    varied = frozenset(name for one in changed for name in one)
    _require_alike(rows, own, varied)
    printed, note = _reported([rows.firsts[row] for row in own], parameter, varied)
    values = {row: _varied_value(rows.firsts[row], parameter, varied) for row in own}
    own.sort(key=lambda row: _place(values[row], parameter))
    points = rows.only(own)
    means, deviations = points.over("scores.average"), points.over("scores.average", "std")
    made = [
        Point(
            values[row],
            f"{values[row]:g}" if isinstance(values[row], float) else str(values[row]),
            means[place] or 0.0,
            deviations[place],
            len(points.seeds[place]),
            printed.get(values[row]),
        )
        for place, row in enumerate(own)
    ]
    averages = rows.over("scores.average")
    lines = {
        row_title(first): average or 0.0
        for first, average in zip(rows.firsts, averages, strict=True)
        if first["experiment"]["method"] in REFERENCES and first["experiment"]["method"] != method
    }
    first = rows.firsts[own[0]]["experiment"]
    facts = first["data"], first["model"], first["protocol"]
    return Sweep(parameter, method, *facts, made, lines, note, points)


def sweep_table(sweep: Sweep) -> Table:
    """One row per point, then one per method that it is compared with."""
    rows, points = sweep.rows, sweep.points
    assert rows is not None
    blank = [None] * len(sweep.lines)
    means = [point.mean for point in points]
    deviations = [point.deviation for point in points]
    counts = [point.seeds for point in points]
    printed = [point.printed for point in points]
    labels = [point.label for point in points]
    parts = [
        Column("Average", means, spread=deviations, ranked=True),
        gain_column(rows),
        paper_column(printed),
        _difference_column(means, deviations, counts, printed),
        time_column(rows),
        seeds_column(rows),
    ]
    names = Column(
        sweep.parameter,
        [*(one.value if isinstance(one.value, int | float) else None for one in points), *blank],
        WORDS if sweep.parameter in VARIANTS else "s",
        texts=[*labels, *sweep.lines],
        links=None if rows.anchors is None else [*(links(rows, labels) or []), *([] for _ in blank)],
    )
    columns = [names, *(_longer(one, blank) for one in parts)]
    columns[1] = _longer(parts[0], list(sweep.lines.values()))
    notes = [_MARK_NOTE] if any(printed) else []
    notes += [sweep.note] if sweep.note else []
    facts = {name: getattr(sweep, name) for name in ("data", "model", "protocol", "method", "parameter")}
    records: list[dict[str, Any]] = []
    for point in points:
        side = _beside(point.mean, point.deviation, point.seeds, point.printed)
        kept = ("measured", "deviation", "paper", "paper_deviation", "beyond_deviation")
        records.append(
            {**facts, "value": point.value, "seeds": point.seeds, **{name: side[name] for name in kept}}
        )
    records += [{**facts, "method": title, "measured": mean} for title, mean in sweep.lines.items()]
    aside = [False] * len(points) + [True] * len(blank)
    methods = [paper.title(sweep.method)] * len(points) + list(sweep.lines)
    return Table(sweep.title, columns, notes, records, aside, methods).trimmed()


def _longer(column: Column, values: Sequence[Any]) -> Column:
    """A column with these values below its own."""
    blank: list[Any] = [None] * len(values)
    return replace(
        column,
        values=[*column.values, *values],
        spread=None if column.spread is None else [*column.spread, *blank],
        texts=None if column.texts is None else [*column.texts, *("" for _ in blank)],
        marked=None if column.marked is None else [*column.marked, *(False for _ in blank)],
        hints=None if column.hints is None else [*column.hints, *blank],
        links=None if column.links is None else [*column.links, *([] for _ in blank)],
    )


def _require_alike(rows: Rows, own: Sequence[int], varied: frozenset[str]) -> None:
    def facts(row: int) -> dict[str, Any]:
        experiment = rows.firsts[row]["experiment"]
        others = {k: v for k, v in experiment.items() if k not in ("parameters", "seed", "label")}
        return {**others, **parameters(rows.firsts[row])}

    first = facts(own[0])
    for row in own[1:]:
        for name, value in facts(row).items():
            if name not in varied and value != first.get(name):
                raise ValueError(
                    f"results must differ in {', '.join(sorted(varied))} alone, got {name} "
                    f"{first.get(name)!r} and {value!r}"
                )
    settings = [setting_key(first) for first in rows.firsts]
    for row, setting in enumerate(settings):
        if setting != settings[own[0]]:
            raise ValueError(
                f"results must be of one stream and model, got another for {row_title(rows.firsts[row])}"
            )


def _varied_value(result: Result, parameter: str, varied: frozenset[str]) -> Any:
    experiment, own = result["experiment"], parameters(result)
    if parameter == BATCH:
        return experiment["batch"]
    if parameter not in VARIANTS:
        if parameter not in own:
            raise ValueError(f"method {experiment['method']!r} has no parameter {parameter!r}")
        return own[parameter]
    everything = dict.fromkeys(varied, True)
    for name, settings in VARIANTS[parameter].items():
        if all(own[key] == value for key, value in {**everything, **settings}.items()):
            return name
    chosen = ", ".join(f"{name}={own[name]}" for name in sorted(everything))
    raise ValueError(f"{parameter} has no variant with {chosen}")


def _place(value: Any, parameter: str) -> tuple[int, float, str]:
    """Variants in the paper's order; numbers by their size, then words such as "auto"."""
    if parameter in VARIANTS:
        return 0, list(VARIANTS[parameter]).index(value), ""
    number = isinstance(value, int | float)
    return (0, value, "") if number else (1, 0, str(value))


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
