"""The tables of the study without cache."""

from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.studies.study_result import duration, number, text_table
from ramen.experiments.tables.table import Table


def time_table(data: dict[str, Any]) -> Table:
    """Seconds per query and for the whole stream, with and without the cache."""
    spent, whole = data["seconds"], data["whole_stream"]
    kinds = {
        "cached": ("with the cache", 1),
        "recomputed": (f"without, {data['support']:,.0f} entries as here", data["ratio"]),
        "recomputed_full": (f"without, {data['full_support']:,} entries, the most", data["ratio_full"]),
    }
    if data["support"] == data["full_support"]:
        del kinds["recomputed_full"]
    rows = [
        [title, duration(spent[kind]), duration(whole[kind]), number(ratio, 0)]
        for kind, (title, ratio) in kinds.items()
    ]
    printed = data["paper"]
    for kind, title in (("cached", "paper, with the cache"), ("recomputed", "paper, without")):
        total_seconds = printed[kind]
        query = duration(total_seconds / paper.reported_times()["ramen"].images)
        rows.append([title, query, duration(total_seconds), number(total_seconds / printed["cached"], 0)])
    return text_table(
        "Time",
        ["", "per query", f"{data['images']:,} images", "ratio"],
        rows,
        f"Measured on {len(data['queries'])} queries after {data['seen_before']:,} images in batches of "
        f"{data['batch']} and extrapolated to the whole stream, without reading images. A query without the "
        "cache costs as much as one with it, plus the gradients of its support set.",
        "The paper's: 150,000 images of CIFAR-100-C, ViT-B/16, 500 entries, one V100.",
    )


def equality_table(data: dict[str, Any]) -> Table:
    """How much cached and recomputed gradients, steps and answers differ."""
    worst = data["worst"]
    rows = [
        ["gradients: length of the difference", f"{worst['relative_difference']:.2e} of the gradient's"],
        ["gradients: largest difference", f"{worst['largest_difference']:.2e} of the largest coordinate"],
        ["steps: coordinates that differ", f"{100 * worst['differing_signs']:.3f} %"],
        ["steps: largest coordinate that differs", f"{worst['largest_differing']:.2e} of the largest"],
        ["answers: largest difference of a logit", f"{worst['logit_difference']:.2e}"],
        ["answers: same label", f"{data['same_labels']} of {len(data['queries'])}"],
    ]
    return text_table("Cached against recomputed", ["", "worst query"], rows)
