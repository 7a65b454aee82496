"""Tables of what methods cost and of what they change: time, memory, answers repaired and broken."""

from collections.abc import Sequence
from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group, row_titles
from ramen.experiments.analysis.paper_comparison import other_parameters
from ramen.experiments.tables.accuracy import describe_setting, group_record
from ramen.experiments.tables.table import Cell, Column, Table, signed, without_empty_columns

_MIB = 2**20
_BASELINES = ("clip", "ensemble")  # one forward pass
_HARDWARE = "The paper's: one V100, data loading included."


def time_table(groups: Sequence[Group]) -> Table:
    """Milliseconds an image, as multiples of one forward pass too, beside the paper's."""
    base = next((group for method in _BASELINES for group in groups if group.method == method), None)
    records = []
    for group in groups:
        row = _printed_cost(group)
        ms = group.over("cost", "ms_an_image").mean
        passes = group.each("cost", "passes")[0]
        records.append(
            {
                **group_record(group),
                "hardware": _hardware(group),
                "ms_an_image": ms,
                "times_zero_shot": None if base is None else ms / base.over("cost", "ms_an_image").mean,
                "forward_passes": passes["forward"],
                "backward_passes": passes["backward"],
                "paper_ms_an_image": row and row.ms_an_image,
                "paper_times_zero_shot": row and row.seconds / paper.reported_times()["clip"].seconds,
            }
        )
    rows = [
        (
            Cell(title),
            _number(record["ms_an_image"], 2),
            _number(record["times_zero_shot"], 1),
            Cell(f"{record['forward_passes']:g} / {record['backward_passes']:g}"),
            _number(record["paper_ms_an_image"], 2),
            _number(record["paper_times_zero_shot"], 1),
        )
        for title, record in zip(row_titles(groups), records, strict=True)
    ]
    heads = ("ms an image", "x zero-shot", "passes (F / B)", "paper, ms", "paper, x zero-shot")
    where = sorted({record["hardware"] for record in records})
    said = [f"Measured on {', '.join(where)}: the time of predictions, without reading and preprocessing."]
    said += [_HARDWARE] if any(record["paper_ms_an_image"] for record in records) else []
    return _table("Time", groups, heads, rows, said, records)


def memory_table(groups: Sequence[Group]) -> Table:
    """Peaks of memory, and the most that a method keeps of the stream, beside the paper's."""
    records: list[dict[str, Any]] = []
    for group in groups:
        device, host = (group.largest("cost", f"peak_{kind}_bytes") for kind in ("device", "host"))
        kept = group.largest("cost", "memory_bytes")
        records.append(
            {
                **group_record(group),
                "hardware": _hardware(group),
                "peak_device_mib": None if device is None else device / _MIB,
                "peak_host_mib": None if host is None else host / _MIB,
                "kept_mib": None if kept is None else kept / _MIB,
                "paper_peak_device_mib": _printed_peak(group),
            }
        )
    rows = [
        (
            Cell(title),
            _number(record["peak_device_mib"], 0),
            _number(record["peak_host_mib"], 0),
            _number(record["kept_mib"], 1),
            _number(record["paper_peak_device_mib"], 0),
        )
        for title, record in zip(row_titles(groups), records, strict=True)
    ]
    heads = ("peak, device", "peak, host", "kept of the stream", "paper, device")
    said = ["In MiB. Kept of the stream: the most that a method will ever store of it."]
    if any(record["paper_peak_device_mib"] for record in records):
        said.append("The paper's: Table 7, or the page of the published code; fp16.")
    return _table("Memory", groups, heads, rows, said, records)


def changes_table(groups: Sequence[Group]) -> Table:
    """Which share of the images a method repaired and broke beside zero-shot, over all seeds."""
    records: list[dict[str, Any]] = []
    for group in groups:
        kinds = group.each("scores", "changes")
        counts = {kind: sum(one[kind] for one in kinds) for kind in kinds[0]}
        records.append({**group_record(group), **counts, "refused": sum(group.each("scores", "refused"))})
    rows = []
    for title, record in zip(row_titles(groups), records, strict=True):
        images = sum(record[kind] for kind in ("both_right", "repaired", "broken", "both_wrong"))
        shares = {kind: 100 * record[kind] / images for kind in ("repaired", "broken")}
        broken = record["broken"]
        rows.append(
            (
                Cell(title),
                Cell(f"{images:,}"),
                _number(shares["repaired"], 2),
                _number(shares["broken"], 2),
                Cell(signed(shares["repaired"] - shares["broken"])),
                Cell(f"{record['repaired'] / broken:.1f}" if broken else ""),
                Cell(f"{record['refused']:,}"),
            )
        )
    heads = ("images", "repaired, %", "broken, %", "net", "repaired a broken", "refused")
    said = (
        "Repaired: wrong zero-shot, right with the method; broken: the other way round. Refused: answered "
        "zero-shot because something about the image was not finite.",
    )
    return _table("Changed answers", groups, heads, rows, said, records)


def _table(
    what: str,
    groups: Sequence[Group],
    heads: Sequence[str],
    rows: Sequence[tuple[Cell, ...]],
    said: Sequence[str],
    records: Sequence[dict[str, Any]],
) -> Table:
    columns = (Column("Method", "left"), *map(Column, heads))
    title = f"{what}: {describe_setting(groups[0])}"
    return without_empty_columns(Table(title, columns, tuple(rows), tuple(said), tuple(records)))


def _printed_cost(group: Group) -> paper.Cost | None:
    """What Tables 3 and 7 say: CIFAR-100-C, ViT-B/16, batches of 100, wherever the memory lies."""
    if group.experiment["data"] != "cifar100c" or not _fits(group):
        return None
    name = group.parameters["placement"] if group.method == "ramen" else group.method
    return paper.reported_memory().get(name) or paper.reported_times().get(group.method)


def _printed_peak(group: Group) -> float | None:
    cost = _printed_cost(group)
    if cost is not None:
        return cost.mib
    ordinary = group.method == "ramen" and group.parameters["placement"] == "encoder" and _fits(group)
    return paper.reported_peak(group.experiment["data"]) if ordinary else None


def _fits(group: Group) -> bool:
    """Whether it is the paper's experiment; a part of the stream will do, as cost is told for an image."""
    experiment, setting = group.experiment, paper.setting(group.experiment["data"])
    return (
        setting is not None
        and paper.architecture(experiment["model"]) == setting.model
        and experiment["batch"] == setting.batch
        and experiment["label"] is None
        and other_parameters(group, frozenset({"placement"})) is None
    )


def _hardware(group: Group) -> str:
    found = group.results[0].get("provenance", {}).get("hardware", {})
    return str(found.get("name", "unknown hardware"))


def _number(value: float | None, decimals: int) -> Cell:
    return Cell("" if value is None else f"{value:,.{decimals}f}")
