"""The numbers of the Ramen paper: accuracies, sweeps, ablations, times, memory, compositions.

Bao et al., CVPR 2026, arXiv:2604.21728. The numbers are stored in ``paper.json``, which describes its own
layout. If they were read off a figure, or the paper contradicts itself, ``note`` says so.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

TITLES = {  # in the order of the paper's tables
    "clip": "CLIP",
    "ensemble": "Ensemble",
    "entmin": "EntMin",
    "tent": "Tent",
    "note": "NOTE",
    "sar": "SAR",
    "rotta": "RoTTA",
    "tda": "TDA",
    "dmn": "DMN-ZS",
    "watt": "WATT-S",
    "clipartt": "CLIPArTT",
    "mint": "Mint",
    "ramen": "Ramen",
}
WITHOUT_CACHE = "ramen without cache"  # the row of the time table that recomputes every gradient
ABLATION = ("Ramen", "w/o PB", "w/o DC", "w/o PB & DC")
_WITHOUT_STREAM = ("clip", "ensemble")  # their answers depend on the image alone


@dataclass(frozen=True)
class Value:
    """A printed mean and its standard deviation over seeds, if one is printed."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class Reported:
    """The paper's numbers for one method on one stream."""

    average: Value
    source: str
    domains: Mapping[str, Value] = field(default_factory=dict)  # empty if only the average is known
    note: str | None = None


@dataclass(frozen=True)
class Curve:
    """A sweep of one parameter: accuracies by value, in the figure's order."""

    points: Mapping[float, Value]
    source: str
    note: str | None = None


@dataclass(frozen=True)
class PaperCost:
    """What a method costs according to the paper, on CIFAR-100-C with ViT-B/16 and one V100."""

    seconds: float
    images: int
    mib: float | None = None  # peak on the GPU

    @property
    def ms_an_image(self) -> float:
        """Milliseconds per image: wall time with data loading."""
        return 1000 * self.seconds / self.images


@dataclass(frozen=True)
class Composition:
    """Shares in percent of support entries from each domain (column) for test images of a domain (row)."""

    domains: tuple[str, ...]
    matrix: tuple[tuple[float, ...], ...]
    same_domain: float
    chance: float
    note: str | None = None


@dataclass(frozen=True)
class PaperSetting:
    """The paper's experiment on a data set."""

    title: str
    model: str  # the architecture of its main table
    domains: tuple[str, ...]
    images: int  # in the whole stream
    batch: int


def title(method: str) -> str:
    """A method's name in the paper's tables; the name itself if it is not in the paper.

    >>> title("dmn"), title("mine")
    ('DMN-ZS', 'mine')
    """
    return TITLES.get(method, method)


def position(method: str) -> int:
    """A method's position in the paper's tables; one past the end if it is not there."""
    return list(TITLES).index(method) if method in TITLES else len(TITLES)


def setting(data: str) -> PaperSetting | None:
    """The paper's setting on a data set, None if it has none.

    >>> setting("cifar100c").model, setting("cifar100c").batch
    ('ViT-B-16', 100)
    """
    facts = _numbers()["settings"].get(data)
    return None if facts is None else PaperSetting(**facts | {"domains": _domains(facts["domains"])})


def architecture(model: str) -> str | None:
    """The architecture of OpenAI weights, as the paper uses them; None for any other model.

    >>> architecture("ViT-B-32/openai"), architecture("ViT-B-32-quickgelu/openai"), architecture("tiny")
    ('ViT-B-32', 'ViT-B-32', None)
    """
    name, _, tag = model.rpartition("/")
    return name.removesuffix("-quickgelu") if tag == "openai" else None


def reported(data: str, model: str, protocol: str, method: str) -> Reported | None:
    """The paper's numbers of a method on the whole stream with its own hyper-parameters, or None.

    Args:
        data: A data set's name; the paper's ImageNet-C is ``imagenetc5k``.
        model: As in a result, ``"ViT-B-16/openai"``.
        protocol: ``"mixed"`` or ``"single"``.
        method: A method's name.
    """
    name = architecture(model)
    row = _numbers()["mixed"].get(data, {}).get(name, {}).get(method)
    if row is not None and (protocol == "mixed" or (protocol == "single" and method in _WITHOUT_STREAM)):
        return _table_row(data, name, row)
    main = setting(data)
    if main is None or name != main.model:
        return None
    if protocol == "mixed" and method == "entmin":
        points = _numbers()["sweeps"][data]["lr"]["entmin"]
        mean, deviation = next(point[1:] for point in points if point[0] == 0.01)
        return Reported(
            Value(mean, deviation), "Fig. 9", note="from a figure, at lr 0.01; EntMin is in no table"
        )
    bar = _numbers()["bars"][data].get(method)
    if protocol == "single" and bar is not None:
        return Reported(Value(*bar["single"]), "Fig. 6", note=_note("single"))
    return None


def reported_bars(data: str) -> dict[str, dict[str, Value]]:
    """Single- and mixed-domain averages of Figures 2 and 6, by method and protocol; read off the figure."""
    bars = _numbers()["bars"].get(data, {})
    return {
        method: {protocol: Value(*pair) for protocol, pair in row.items()} for method, row in bars.items()
    }


def bars_note(data: str, method: str) -> str | None:
    """A remark on a method's bars."""
    return _note("bars", data, method)


def reported_sweep(data: str, parameter: str, method: str = "ramen") -> Curve | None:
    """The curve of Figures 4, 8, 9 or 10: ``capacity``, ``topk``, ``beta``, ``lr`` or ``batch``.

    >>> reported_sweep("cifar100c", "topk").points[5].mean
    46.18
    """
    if parameter == "batch":
        points = _numbers()["batch"].get(data) if method == "ramen" else None
    else:
        points = _numbers()["sweeps"].get(data, {}).get(parameter)
        if isinstance(points, dict):
            points = points.get(method)
        elif method != "ramen":
            points = None
    if not isinstance(points, list):
        return None
    source = {"lr": "Fig. 9", "batch": "Fig. 10"}.get(parameter, "Fig. 8")
    return Curve({value: Value(mean, sd) for value, mean, sd in points}, source, _note(parameter, data))


def reported_ablation(data: str, protocol: str) -> dict[str, Value]:
    """Figure 5: ``Ramen``, ``w/o PB``, ``w/o DC``, ``w/o PB & DC``, read off the figure; else empty."""
    rows = _numbers()["ablation"].get(data, {}).get(protocol, {})
    return {label: Value(*rows[label]) for label in ABLATION if label in rows}


def reported_weights(data: str) -> dict[str, Value]:
    """Table 8: weights ``none``, ``similarity``, ``entropy``, ``both`` and ``entmin``; else empty."""
    return {name: Value(*pair) for name, pair in _numbers()["weights"].get(data, {}).items()}


def reported_times() -> dict[str, PaperCost]:
    """Table 3 by method, and ``WITHOUT_CACHE``: CIFAR-100-C, ViT-B/16, one V100.

    >>> round(reported_times()["ramen"].ms_an_image, 2)
    5.65
    """
    images = _numbers()["settings"]["cifar100c"]["images"]
    return {
        name: PaperCost(seconds, images) for name, (seconds, _) in _numbers()["times"]["cifar100c"].items()
    }


def reported_memory() -> dict[str, PaperCost]:
    """Table 7: ``entmin``, and Ramen's placements ``encoder``, ``split``, ``cpu``; as ``reported_times``."""
    images = _numbers()["settings"]["cifar100c"]["images"]
    rows = _numbers()["memory"]["cifar100c"]
    return {name: PaperCost(seconds, images, mib) for name, (mib, seconds) in rows.items()}


def reported_peak(data: str) -> float | None:
    """Ramen's peak on the GPU in MiB with its memory there, as the published code's page says."""
    value: float | None = _numbers()["peak_mib"].get(data)
    return value


def reported_composition(data: str) -> Composition | None:
    """The heat map of Figures 3 and 7; its shares are decoded from colours, to about 0.4."""
    found, main = _numbers()["composition"].get(data), setting(data)
    if found is None or main is None:
        return None
    matrix = tuple(tuple(row) for row in found["matrix"])
    return Composition(
        main.domains, matrix, found["same_domain"], found["chance"], _note("composition", data)
    )


def reported_similarity_bins(data: str) -> tuple[tuple[float, ...], str] | None:
    """Table 4 and a remark on it: same-domain shares of pairs, from the most similar tenth to the least."""
    bins, note = _numbers()["similarity_bins"].get(data), _note("similarity_bins")
    return None if bins is None else (tuple(bins), str(note))


def _table_row(data: str, model: str | None, row: Mapping[str, Any]) -> Reported:
    main = setting(data)
    assert main is not None
    deviations = row["deviations"] or [None] * len(row["accuracies"])
    pairs = zip(row["accuracies"], deviations, strict=True)
    return Reported(
        Value(*row["average"]),
        "Table 9" if model == "RN101" else "Table 6" if data == "domainnet" else "Table 5",
        {name: Value(*pair) for name, pair in zip(main.domains, pairs, strict=True)},
        _note(str(model)),
    )


def _note(*path: str) -> str | None:
    found: Any = _numbers()["notes"]
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def _domains(kind: str) -> tuple[str, ...]:
    return tuple(_numbers()["domains"][kind])


@cache
def _numbers() -> dict[str, Any]:
    text = resources.files("ramen.experiments.analysis").joinpath("paper.json").read_text(encoding="utf-8")
    numbers: dict[str, Any] = json.loads(text)
    return numbers
