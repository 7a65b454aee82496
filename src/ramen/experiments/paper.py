"""The numbers of the Ramen paper, and whether a measured one may be compared with them.

Bao et al., CVPR 2026, arXiv:2604.21728. Each row of ``paper.csv`` is one number. Bars, lines and heat maps
were read off the figures, to about 0.01, 0.01 and 0.4; ``note`` says where the paper contradicts itself.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
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
CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
SWEPT = ("capacity", "topk", "beta", "lr", "batch")
_WITHOUT_STREAM = ("clip", "ensemble")  # their answers depend on the image alone
FLOOR = 0.15
RULE = (
    "differs from the paper's number by more than 2 sqrt(s²/n + p²), where s is the deviation "
    "measured over n seeds and p the printed one (with one seed s = p), and by more than "
    f"{FLOOR}, the rounding of printed numbers."
)


@dataclass(frozen=True)
class Value:
    """A number of the paper's and its standard deviation over seeds, if one is printed."""

    mean: float
    deviation: float | None = None
    source: str = ""
    note: str = ""

    def __str__(self) -> str:
        """The number with the decimals that it is printed with."""
        parts = [self.mean] if self.deviation is None else [self.mean, self.deviation]
        decimals = 1 if all(round(part, 1) == part for part in parts) else 2
        return " ± ".join(f"{part:.{decimals}f}" for part in parts)


@dataclass(frozen=True)
class Setting:
    """The paper's experiment on a data set: the model of its main table, and the whole stream."""

    title: str
    model: str
    domains: tuple[str, ...]
    images: int
    batch: int


_DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
SETTINGS = {
    "cifar10c": Setting("CIFAR-10-C", "ViT-B-32", CORRUPTIONS, 150_000, 100),
    "cifar100c": Setting("CIFAR-100-C", "ViT-B-16", CORRUPTIONS, 150_000, 100),
    "imagenetc5k": Setting("ImageNet-C", "ViT-L-14", CORRUPTIONS, 75_000, 50),
    "domainnet": Setting("DomainNet", "ViT-B-32", _DOMAINNET, 586_575, 100),
}


def title(method: str) -> str:
    """A method's name in the paper's tables; the name itself if it is not in the paper.

    >>> title("dmn"), title("mine")
    ('DMN-ZS', 'mine')
    """
    return TITLES.get(method, method)


def position(method: str) -> int:
    """A method's position in the paper's tables; one past the end if it is not there."""
    return list(TITLES).index(method) if method in TITLES else len(TITLES)


def architecture(model: str) -> str | None:
    """The architecture of OpenAI weights, as the paper uses them; None for any other model.

    >>> architecture("ViT-B-32/openai"), architecture("ViT-B-32-quickgelu/openai"), architecture("tiny")
    ('ViT-B-32', 'ViT-B-32', None)
    """
    name, _, tag = model.rpartition("/")
    return name.removesuffix("-quickgelu") if tag == "openai" else None


@cache
def _rows() -> dict[tuple[str, str], list[dict[str, str]]]:
    """The rows by what they are and their data set."""
    file = resources.files("ramen.experiments").joinpath("paper.csv")
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        found.setdefault((row["what"], row["data"]), []).append(row)
    return found


def values(what: str, data: str, **facts: str) -> dict[str, Value]:
    """Numbers of one kind by name, in the paper's order; empty if it has none.

    Args:
        what: ``accuracy`` or ``bars`` (by domain), one of ``SWEPT`` (by value), ``ablation``, ``weights`` (by
            variant), ``seconds`` and ``mib`` (by placement), ``peak``, ``composition``, ``same_domain``,
            ``chance``, ``similarity`` (by bin).
        data: A data set's name; the paper's ImageNet-C is ``imagenetc5k``.
        facts: Other columns of ``paper.csv``, such as ``method="ramen"``.

    >>> values("topk", "cifar100c", method="ramen")["5"].mean
    46.18
    """
    return {
        row["name"]: Value(
            float(row["mean"]),
            float(row["deviation"]) if row["deviation"] else None,
            row["source"],
            row["note"],
        )
        for row in _rows().get((what, data), ())
        if all(row[name] == value for name, value in facts.items())
    }


def reported(data: str, model: str, protocol: str, method: str) -> dict[str, Value]:
    """A method's accuracy on the whole stream by domain, and ``average``, with its own hyper-parameters.

    Only the average is known if it comes from a figure; empty if the paper does not report it.

    Args:
        data: A data set's name.
        model: As in a result, ``"ViT-B-16/openai"``.
        protocol: ``"mixed"`` or ``"single"``.
        method: A method's name.
    """
    name, main = architecture(model), SETTINGS.get(data)
    if protocol == "mixed" or (protocol == "single" and method in _WITHOUT_STREAM):
        found = values("accuracy", data, model=name or "", method=method)
        if found:
            return found
    if main is None or name != main.model:
        return {}
    if protocol == "mixed" and method == "entmin":
        one = values("lr", data, method=method)["0.01"]
        return {
            "average": Value(
                one.mean, one.deviation, "Fig. 9", "from a figure, at lr 0.01; EntMin is in no table"
            )
        }
    return values("bars", data, protocol="single", method=method) if protocol == "single" else {}


def curve(data: str, parameter: str, method: str = "ramen") -> dict[float, Value]:
    """The curve of Figures 4, 8, 9 or 10: accuracies by the value of one of ``SWEPT``; else empty."""
    found = values(parameter, data, method=method) if parameter in SWEPT else {}
    return {float(value) if "." in value else int(value): number for value, number in found.items()}


def seconds(method: str, placement: str | None = None) -> float | None:
    """Seconds for CIFAR-100-C with ViT-B/16 on one V100: Table 7 if it has the placement, else Table 3."""
    by_placement = values("seconds", "cifar100c", method="")
    if placement in by_placement:
        return by_placement[placement].mean
    found = values("seconds", "cifar100c", method=method).get("")
    return None if found is None else found.mean


# -- what may be compared -----------------------------------------------------------------------------------


def tolerance(deviation: float | None, seeds: int, printed: Value) -> float:
    """The largest difference that is not marked; ``RULE`` in numbers.

    >>> round(tolerance(0.3, 9, Value(70.5, 0.2)), 4)
    0.4472
    """
    other = printed.deviation or 0.0
    own = other if deviation is None or math.isnan(deviation) else deviation
    return max(FLOOR, 2 * math.hypot(own / math.sqrt(seeds), other))


def differs(mean: float, deviation: float | None, seeds: int, printed: Value) -> bool:
    """Whether the difference is larger than the deviations explain."""
    return abs(mean - printed.mean) > tolerance(deviation, seeds, printed) + 1e-9


def beside(result: Mapping[str, Any]) -> tuple[dict[str, Value], str | None]:
    """The paper's numbers for the experiment of a result, or why none of its numbers are comparable."""
    reason = why_not_comparable(result)
    if reason is not None:
        return {}, reason
    experiment = result["experiment"]
    if experiment["label"] is not None:
        return {}, "it is a variant"
    found = reported(experiment["data"], experiment["model"], experiment["protocol"], experiment["method"])
    if not found:
        return {}, f"the paper does not report {title(experiment['method'])} for this setting"
    return found, None


def why_not_comparable(result: Mapping[str, Any], varied: frozenset[str] = frozenset()) -> str | None:
    """Why a result cannot be compared with the paper; None if it can.

    Args:
        result: What was measured.
        varied: Parameters that may differ; ``batch`` may be one.
    """
    experiment = result["experiment"]
    setting = SETTINGS.get(experiment["data"])
    if setting is None:
        return f"the paper does not use {experiment['data']}"
    reason = _other_stream(result, setting)
    if reason is not None:
        return reason
    if experiment["templates"] != "ensemble":
        return f"templates {experiment['templates']} instead of the paper's seven"
    if "batch" not in varied and experiment["batch"] != setting.batch:
        return f"batches of {experiment['batch']} instead of {setting.batch}"
    return other_parameters(experiment, varied)


def _other_stream(result: Mapping[str, Any], setting: Setting) -> str | None:
    experiment, images = result["experiment"], result["scores"]["images"]
    known = {setting.model, "RN101"} if experiment["data"] == "cifar100c" else {setting.model}
    if architecture(experiment["model"]) not in known:
        return f"the paper uses {setting.model}/openai on {setting.title}, not {experiment['model']}"
    if experiment["protocol"] not in ("mixed", "single"):
        return f"the paper has no {experiment['protocol']} stream"
    for key, value in experiment["protocol_parameters"].items():
        if value is not None:
            return f"not the whole stream: {key}={value}"
    severity = experiment["data_options"].get("severity", 5)
    if severity != 5:
        return f"severity {severity} instead of 5"
    domains = result["scores"]["domains"]
    if set(domains) != set(setting.domains):
        return f"{len(domains)} domains that are not the paper's {len(setting.domains)}"
    if sum(images.values()) != setting.images:
        return f"{sum(images.values()):,} images instead of {setting.images:,}"
    return None


def other_parameters(experiment: Mapping[str, Any], varied: frozenset[str] = frozenset()) -> str | None:
    """The first parameter whose value is not the paper's, in words; None if all are."""
    from ramen.experiments.presets import find_preset
    from ramen.experiments.values import plain, with_defaults

    method = experiment["method"]
    preset = find_preset(None, experiment["data"], experiment["model"])
    expected = with_defaults(method, plain(preset.row(method, experiment["protocol"])))
    own = with_defaults(method, experiment["parameters"])
    for name in own:
        if name not in varied and own[name] != expected.get(name):
            return f"{name}={own[name]} instead of {expected.get(name)}"
    return None
