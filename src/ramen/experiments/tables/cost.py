"""Tables of what methods cost: time and memory."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group
from ramen.experiments.analysis.paper_comparison import other_parameters
from ramen.experiments.analysis.spread import over_seeds
from ramen.experiments.run.measure import STAGES
from ramen.experiments.tables.group_rows import GroupRow, describe_setting, group_record, name_column
from ramen.experiments.tables.table import (
    Cell,
    Column,
    ColumnCells,
    Table,
    number_cell,
    spread_cell,
    without_empty_columns,
)

_MIB = 2**20
_BASELINES = ("clip", "ensemble")  # one forward pass
_PAPER_TIMES = "The paper's times: one V100, data loading included."
_PAPER_MEMORY = "The paper's memory: Table 7, or the page of the published code; fp16."


def time_table(rows: Sequence[GroupRow]) -> Table:
    """Milliseconds per image, also as multiples of one forward pass, with the paper's."""
    records = _time_records(rows)
    hardware = ", ".join(sorted({record["hardware"] for record in records}))
    notes = [f"Measured on {hardware}: the time of predictions, without reading and preprocessing."]
    return _table("Time", rows, _time_columns(rows, records), [*notes, *_time_notes(records)], records)


def memory_table(rows: Sequence[GroupRow]) -> Table:
    """Peaks of memory, and the most that a method keeps of the stream, with the paper's."""
    records = _memory_records(rows)
    notes = [
        "Memory is in MiB, the largest of all seeds. Kept: the most that a method ever stores of the stream."
    ]
    return _table("Memory", rows, _memory_columns(records), [*notes, *_memory_notes(records)], records)


def cost_table(rows: Sequence[GroupRow]) -> Table:
    """Time and memory in one table, with the seconds of each stage of a run."""
    times, memory = _time_records(rows), _memory_records(rows)
    columns = [
        *_time_columns(rows, times),
        *_memory_columns(memory),
        *_stage_columns(rows),
        (Column("Batch"), [number_cell(row.group.experiment["batch"], "d") for row in rows]),
        (Column("Hardware", "left"), [Cell(_hardware(row.group)) for row in rows]),
    ]
    notes = [
        "Means over seeds; memory is in MiB, the largest of all seeds. Times on different hardware do not "
        "compare."
    ]
    return _table("Time and memory", rows, columns, [*notes, *_time_notes(times), *_memory_notes(memory)], ())


def time_column(rows: Sequence[GroupRow]) -> ColumnCells:
    """Milliseconds per image."""
    times = [row.group.known("cost", "ms_an_image") for row in rows]
    return Column("ms per image", hint="in predict"), [
        spread_cell(None if one is None else over_seeds(one), ",.2f") for one in times
    ]


def stage_means(group: Group) -> dict[str, float]:
    """Seconds of each stage, averaged over runs."""
    times = [result["cost"].get("seconds") or {} for result in group.results]
    return {
        stage: fmean(run[stage] for run in times) for stage in STAGES if all(stage in run for run in times)
    }


def _time_columns(rows: Sequence[GroupRow], records: Sequence[dict[str, Any]]) -> list[ColumnCells]:
    passes = Column("Passes (F / B)", "left", hint="forward and backward passes of the encoder per image")
    return [
        time_column(rows),
        _number_column("x zero-shot", records, "times_zero_shot", ",.1f"),
        (passes, [Cell(_passes(record)) for record in records]),
        _number_column("Paper, ms", records, "paper_ms_an_image", ",.2f"),
        _number_column("Paper, x zero-shot", records, "paper_times_zero_shot", ",.1f"),
    ]


def _memory_columns(records: Sequence[dict[str, Any]]) -> list[ColumnCells]:
    return [
        _number_column("Peak, device", records, "peak_device_mib", ",.0f"),
        _number_column("Peak, host", records, "peak_host_mib", ",.0f"),
        _number_column("Kept", records, "kept_mib", ",.1f", hint="what the method stores of the stream"),
        _number_column("Paper, device", records, "paper_peak_device_mib", ",.0f"),
    ]


def _stage_columns(rows: Sequence[GroupRow]) -> list[ColumnCells]:
    means = [stage_means(row.group) for row in rows]
    return [
        (
            Column(f"{stage.replace('_', ' ')}, s", hint="seconds of a whole run"),
            [number_cell(one.get(stage), ",.1f") for one in means],
        )
        for stage in STAGES
    ]


def _number_column(
    head: str, records: Sequence[dict[str, Any]], name: str, form: str, hint: str | None = None
) -> ColumnCells:
    return Column(head, hint=hint), [number_cell(record[name], form) for record in records]


def _passes(record: dict[str, Any]) -> str:
    counts = record["forward_passes"], record["backward_passes"]
    return "" if None in counts else " / ".join(f"{count:g}" for count in counts)


def _table(
    what: str,
    rows: Sequence[GroupRow],
    columns: Sequence[ColumnCells],
    notes: Sequence[str],
    records: Sequence[dict[str, Any]],
) -> Table:
    title = f"{what}: {describe_setting(rows[0].group)}"
    return without_empty_columns(Table.from_columns(title, [name_column(rows), *columns], notes, records))


def _time_notes(records: Sequence[dict[str, Any]]) -> list[str]:
    return [_PAPER_TIMES] if any(record["paper_ms_an_image"] for record in records) else []


def _memory_notes(records: Sequence[dict[str, Any]]) -> list[str]:
    return [_PAPER_MEMORY] if any(record["paper_peak_device_mib"] for record in records) else []


def _time_records(rows: Sequence[GroupRow]) -> list[dict[str, Any]]:
    groups = [row.group for row in rows]
    base = next((group for method in _BASELINES for group in groups if group.method == method), None)
    records = []
    for group in groups:
        reported = _reported_cost(group)
        ms = group.over("cost", "ms_an_image").mean
        passes = group.results[0]["cost"]["passes"] or {}
        records.append(
            {
                **group_record(group),
                "hardware": _hardware(group),
                "ms_an_image": ms,
                "times_zero_shot": None if base is None else ms / base.over("cost", "ms_an_image").mean,
                "forward_passes": passes.get("forward"),
                "backward_passes": passes.get("backward"),
                "paper_ms_an_image": reported and reported.ms_an_image,
                "paper_times_zero_shot": reported
                and reported.seconds / paper.reported_times()["clip"].seconds,
            }
        )
    return records


def _memory_records(rows: Sequence[GroupRow]) -> list[dict[str, Any]]:
    return [
        {
            **group_record(row.group),
            "hardware": _hardware(row.group),
            "peak_device_mib": _mib(row.group, "peak_device_bytes"),
            "peak_host_mib": _mib(row.group, "peak_host_bytes"),
            "kept_mib": _mib(row.group, "memory_bytes"),
            "paper_peak_device_mib": _reported_peak(row.group),
        }
        for row in rows
    ]


def _mib(group: Group, name: str) -> float | None:
    count = group.largest("cost", name)
    return None if count is None else count / _MIB


def _hardware(group: Group) -> str:
    found = [result.get("provenance", {}).get("hardware") or {} for result in group.results]
    names = dict.fromkeys(str(one.get("name") or one.get("device") or "unknown hardware") for one in found)
    return "; ".join(names)


def _reported_cost(group: Group) -> paper.PaperCost | None:
    """What Tables 3 and 7 say: CIFAR-100-C, ViT-B/16, batches of 100, for any placement of the memory."""
    if group.experiment["data"] != "cifar100c" or not _is_papers_experiment(group):
        return None
    name = group.parameters["placement"] if group.method == "ramen" else group.method
    return paper.reported_memory().get(name) or paper.reported_times().get(group.method)


def _reported_peak(group: Group) -> float | None:
    cost = _reported_cost(group)
    if cost is not None:
        return cost.mib
    usual = group.method == "ramen" and group.parameters["placement"] == "encoder"
    return paper.reported_peak(group.experiment["data"]) if usual and _is_papers_experiment(group) else None


def _is_papers_experiment(group: Group) -> bool:
    """Whether the paper ran it; a part of the stream is enough, as cost is reported per image."""
    experiment, setting = group.experiment, paper.setting(group.experiment["data"])
    return (
        setting is not None
        and paper.architecture(experiment["model"]) == setting.model
        and experiment["batch"] == setting.batch
        and experiment["label"] is None
        and other_parameters(group, frozenset({"placement"})) is None
    )
