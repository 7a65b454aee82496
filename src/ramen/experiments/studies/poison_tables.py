"""The tables of the study of poisoned streams."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ramen.experiments.studies.study_result import text_table
from ramen.experiments.tables.table import Table


def summary_table(data: Mapping[str, Any]) -> Table:
    """Per method the accuracy without attacker, the most that an attack takes from it, and what is left."""
    shares = data["shares"]
    heads = ["method", "zero-shot", "no attacker", *(f"lost, {_percent(share)}" for share in shares)]
    rows = []
    for name, entry in data["methods"].items():
        if "reason" in entry:
            rows.append([name, *["-"] * (len(heads))])
            continue
        most = [
            max((losses(entry, attack, share) for attack in data["attacks"]), key=statistics.fmean)
            for share in shares
        ]
        accuracies = [_spread(entry[key]) for key in ("zero_shot", "clean")]
        rows.append([name, *accuracies, *map(_spread, most), _spread(worst_gain(data, entry), "+z.2f")])
    return text_table(
        "The worst attack at each share of the stream",
        [*heads, "worst - zero-shot"],
        rows,
        f"Accuracy on {data['images']:,} images of other users and points of it that the worst attack "
        f"takes, if the attacker sends that share of the stream; batches of {data['batch']}. worst - "
        "zero-shot: with the worst attack and share, above zero-shot on the same images. Mean ± deviation "
        "over seeds.",
        *_reasons(data),
    )


def loss_table(data: Mapping[str, Any]) -> Table:
    """Points that each attack takes from each method at each share."""
    cells = [(attack, share) for attack in data["attacks"] for share in data["shares"]]
    rows = [
        [
            name,
            *(
                "-" if "reason" in entry else f"{statistics.fmean(losses(entry, *cell)):z.2f}"
                for cell in cells
            ),
        ]
        for name, entry in data["methods"].items()
    ]
    return text_table(
        "Points lost to each attack",
        ["method", *(f"{attack}, {_percent(share)}" for attack, share in cells)],
        rows,
        f"Against the same method without attacker; below 0 is a gain. The attacker has "
        f"{data['attacker_images']:,} images of his own and changes pixels by at most "
        f"{255 * data['eps']:.3g}/255. entropy, target: towards the highest entropy, towards one class, by "
        f"{data['steps']} gradient steps through the pretrained model; flood: unchanged images of one "
        "predicted class; noise: uniform noise.",
    )


def losses(entry: Mapping[str, Any], attack: str, share: float) -> list[float]:
    """Points that an attack takes from a method, for each seed."""
    return [
        clean - poisoned
        for clean, poisoned in zip(entry["clean"], entry["poisoned"][attack][f"{share:g}"], strict=True)
    ]


def worst_gain(data: Mapping[str, Any], entry: Mapping[str, Any]) -> list[float]:
    """How far above zero-shot a method stays with the worst attack and share, for each seed."""
    gains = [
        [found - zero for found, zero in zip(accuracies, entry["zero_shot"], strict=True)]
        for attack in data["attacks"]
        for accuracies in entry["poisoned"][attack].values()
    ]
    return min(gains, key=statistics.fmean)


def _spread(values: Sequence[float], form: str = "z.2f") -> str:
    mean = format(statistics.fmean(values), form)
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _reasons(data: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} cannot run on this model: {entry['reason']}."
        for name, entry in data["methods"].items()
        if "reason" in entry
    ]
