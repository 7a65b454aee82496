"""The tables of one setting: accuracies, what changed beside zero-shot, time and memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group, row_titles
from ramen.experiments.analysis.paper_comparison import RULE, Beside, beside_paper, differs
from ramen.experiments.analysis.scoring import Spread, over_seeds
from ramen.experiments.report.html import (
    MINUS,
    MISSING,
    NOTHING,
    Cell,
    Column,
    Markup,
    Row,
    Table,
    element,
    join,
    number,
    spread,
    text,
    without_empty_columns,
)

MIB = 2**20
STAGES = ("read", "preprocess", "predict", "zero_shot", "score")


@dataclass(frozen=True)
class Named:
    """A group, its name in this page's tables, and where its settings stand."""

    group: Group
    name: str
    anchor: str

    @property
    def link(self) -> Cell:
        """The name, leading to the settings."""
        return Cell(element("a", self.name, href=f"#{self.anchor}"), self.name)

    def run_anchor(self, seed: int) -> str:
        """Where one run's own settings stand."""
        return f"{self.anchor}-seed{seed}"

    @property
    def seed_links(self) -> Cell:
        """The seeds, each leading to its run."""
        links = (element("a", str(seed), href=f"#{self.run_anchor(seed)}") for seed in self.group.seeds)
        shown = element("span", Markup(" ".join(links)), class_="seeds")
        return Cell(shown, " ".join(map(str, self.group.seeds)))


def name_groups(groups: Sequence[Group], first: int) -> list[Named]:
    """Groups of one setting with their names; anchors count on from ``first``."""
    titles = zip(groups, row_titles(groups), strict=True)
    return [
        Named(group, _name(group, title), f"settings-{first + n}") for n, (group, title) in enumerate(titles)
    ]


def _name(group: Group, title: str) -> str:
    """A variant is told together with its method."""
    method = paper.title(group.method)
    return title if title.startswith(method) else f"{method}, {title}"


def accuracy_table(rows: Sequence[Named], anchor: str) -> Table:
    """Methods by domains, with the gain over zero-shot and the paper's average."""
    domains = list(dict.fromkeys(domain for row in rows for domain in row.group.domains))
    besides = {row.anchor: beside_paper(row.group) for row in rows}
    compared = any(beside.reported for beside in besides.values())
    columns = [
        Column("Method", "text"),
        Column("Average", hint="the mean of the domains' accuracies, in percent"),
        Column("Above zero-shot", hint="in points, paired on the same images", spread="margin"),
        *([Column("Reported"), Column(f"Measured {MINUS} reported")] if compared else []),
        Column("Seeds", "text"),
        *(Column(domain.replace("_", " ")) for domain in domains),
    ]
    best = {domain: best_mean([row.group.domains.get(domain) for row in rows]) for domain in domains}
    top = best_mean([row.group.average for row in rows])
    body = [
        Row(
            [
                row.link,
                spread(row.group.average, best=row.group.average.mean == top),
                gain_cell(row.group),
                *(_reported_cells(row.group, besides[row.anchor]) if compared else []),
                row.seed_links,
                *(_domain_cell(row.group.domains.get(domain), best[domain]) for domain in domains),
            ],
            method=row.name,
        )
        for row in rows
    ]
    return Table(anchor, "Accuracy, %", columns, body, _accuracy_note(compared))


def _accuracy_note(compared: bool) -> str:
    note = (
        "Mean ± standard deviation over seeds; the best mean of each column is shaded. Above zero-shot: "
        "beside the same classifier without adaptation, on the same images; ± is half the 95 % confidence "
        "interval over the images of a run, the mean over runs."
    )
    return f"{note} A reported number is set off where the measured one {RULE}" if compared else note


def best_mean(spreads: Sequence[Spread | None]) -> float | None:
    """The highest mean of several rows; None where there is nothing to beat."""
    means = [one.mean for one in spreads if one is not None]
    return max(means) if len(set(means)) > 1 else None


def gain_cell(group: Group) -> Cell:
    """Points above zero-shot and the margin."""
    margin = fmean(group.each("scores", "difference", "margin"))
    return spread(Spread(group.gain.mean, margin, 1), "+z.2f")


def _reported_cells(group: Group, beside: Beside) -> list[Cell]:
    if beside.reported is None:
        return [Cell(NOTHING, hint=beside.reason)] * 2
    value = beside.reported.average
    hint = beside.reported.source + (f": {beside.reported.note}" if beside.reported.note else "")
    reported = spread(Spread(value.mean, value.deviation, 1), ".1f", hint=hint)
    difference = group.average.mean - value.mean
    if not differs(group.average, value):
        return [reported, number(difference, "+z.2f")]
    return [reported, replace(number(difference, "+z.2f", hint=RULE), marked=True)]


def _domain_cell(value: Spread | None, best: float | None) -> Cell:
    if value is None:
        return MISSING
    shown = format(value.mean, ".1f")
    if value.deviation is not None:
        shown = join(shown, element("span", f" ± {value.deviation:.1f}", class_="spread"))
    return Cell(shown, value.mean, value.deviation, str(value), value.mean == best)


def change_table(rows: Sequence[Named], anchor: str) -> Table:
    """What became of zero-shot's answers, and whether confidence can be believed."""
    columns = [
        Column("Method", "text"),
        Column(
            "Repaired,\N{NO-BREAK SPACE}%", hint="of all images: zero-shot was wrong, the method is right"
        ),
        Column("Broken,\N{NO-BREAK SPACE}%", hint="of all images: zero-shot was right, the method is wrong"),
        Column("Net,\N{NO-BREAK SPACE}%"),
        Column("Repaired / broken"),
        Column("Balanced accuracy,\N{NO-BREAK SPACE}%", hint="the mean over classes"),
        Column("Calibration error,\N{NO-BREAK SPACE}%", hint="expected calibration error, 15 bins"),
        Column("Zero-shot's"),
        Column("Refused", hint="images with non-finite values, answered but not learnt from"),
    ]
    body = []
    for row in rows:
        repaired, broken = change_shares(row.group, "repaired"), change_shares(row.group, "broken")
        net = over_seeds([up - down for up, down in zip(repaired, broken, strict=True)])
        ratio = fmean(repaired) / fmean(broken) if fmean(broken) else None
        cells = [
            row.link,
            spread(over_seeds(repaired)),
            spread(over_seeds(broken)),
            spread(net, "+z.2f"),
            number(ratio),
            spread(_known(row.group, "scores", "balanced")),
            spread(_known(row.group, "scores", "calibration_error")),
            spread(_known(row.group, "scores", "zero_shot", "calibration_error")),
            number(_highest(row.group, "scores", "refused"), ".0f"),
        ]
        body.append(Row(cells, method=row.name))
    return Table(anchor, "Repaired, broken, calibrated", columns, body)


def change_shares(group: Group, kind: str) -> list[float]:
    """Repaired or broken images of each run, in percent of its images."""
    return [
        100 * changes[kind] / max(1, sum(changes.values())) for changes in group.each("scores", "changes")
    ]


def cost_table(rows: Sequence[Named], anchor: str) -> Table:
    """Time by stage, memory and encoder passes."""
    columns = [
        Column("Method", "text"),
        Column("ms an image", hint="in predict"),
        Column("Encoder passes", "text", hint="forward and backward, an image"),
        Column("Memory,\N{NO-BREAK SPACE}MiB", hint="what the method keeps"),
        Column("Device peak,\N{NO-BREAK SPACE}MiB"),
        Column("Host peak,\N{NO-BREAK SPACE}MiB"),
        *(Column(f"{stage.replace('_', ' ')},\N{NO-BREAK SPACE}s") for stage in STAGES),
        Column("Batch"),
        Column("Hardware", "text"),
    ]
    body = [Row(_cost_cells(row), method=row.name) for row in rows]
    note = "Means over seeds; memory is the largest of them. Times of different hardware do not compare."
    return without_empty_columns(Table(anchor, "Time and memory", columns, body, note))


def _cost_cells(row: Named) -> list[Cell]:
    group = row.group
    passes = group.results[0]["cost"]["passes"] or {}
    shown = ", ".join(f"{count} {kind}" for kind, count in passes.items() if count is not None)
    hardware = dict.fromkeys(_hardware(result) for result in group.results)
    return [
        row.link,
        spread(_known(group, "cost", "ms_an_image"), ".3g"),
        text(shown),
        *(
            _mib(_highest(group, "cost", name))
            for name in ("memory_bytes", "peak_device_bytes", "peak_host_bytes")
        ),
        *(number(stage_means(group).get(stage), ".1f") for stage in STAGES),
        number(group.experiment["batch"], "d"),
        text("; ".join(hardware)),
    ]


def _hardware(result: Mapping[str, dict[str, dict[str, object]]]) -> str:
    hardware = result.get("provenance", {}).get("hardware") or {}
    return str(hardware.get("name") or hardware.get("device") or "")


def stage_means(group: Group) -> dict[str, float]:
    """Seconds of each stage, the mean over runs."""
    times = [result["cost"].get("seconds") or {} for result in group.results]
    return {
        stage: fmean(run[stage] for run in times) for stage in STAGES if all(stage in run for run in times)
    }


def _known(group: Group, *path: str) -> Spread | None:
    values = _each_or_none(group, path)
    return None if None in values else over_seeds([float(value) for value in values if value is not None])


def _highest(group: Group, *path: str) -> float | None:
    values = _each_or_none(group, path)
    return None if None in values else max(value for value in values if value is not None)


def _each_or_none(group: Group, path: Sequence[str]) -> list[float | None]:
    try:
        return group.each(*path)
    except KeyError:
        return [None]


def _mib(count: float | None) -> Cell:
    return MISSING if count is None else Cell(f"{count / MIB:,.1f}", count / MIB)
