"""Whether a measured number is comparable with the paper's, and when the two differ."""

import math
from dataclasses import dataclass

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group, with_defaults
from ramen.experiments.analysis.paper import PaperSetting, Reported, Value
from ramen.experiments.analysis.spread import Spread
from ramen.experiments.plan.presets import find_preset
from ramen.experiments.plan.values import plain

FLOOR = 0.15
RULE = (
    "differs from the paper's number by more than 2 sqrt(s\u00b2/n + p\u00b2), where s is the deviation "
    "measured over n seeds and p the printed one (with one seed s = p), and by more than "
    f"{FLOOR}, the rounding of printed numbers."
)


@dataclass(frozen=True)
class PaperRow:
    """The paper's numbers for a group, or why it has none that are comparable."""

    reported: Reported | None
    reason: str | None = None


def tolerance(measured: Spread, reported: Value) -> float:
    """The largest difference that is not marked; ``RULE`` in numbers.

    >>> round(tolerance(Spread(70.0, 0.3, 9), Value(70.5, 0.2)), 4)
    0.4472
    """
    printed = reported.deviation or 0.0
    own = printed if measured.deviation is None else measured.deviation
    return max(FLOOR, 2 * math.hypot(own / math.sqrt(measured.seeds), printed))


def differs(measured: Spread, reported: Value) -> bool:
    """Whether the difference is larger than the deviations explain."""
    return abs(measured.mean - reported.mean) > tolerance(measured, reported) + 1e-9


def paper_row(group: Group) -> PaperRow:
    """The paper's numbers for this group, if it ran the paper's experiment."""
    reason = why_not_comparable(group)
    if reason is not None:
        return PaperRow(None, reason)
    experiment = group.experiment
    if experiment["label"] is not None:
        return PaperRow(None, "it is a variant")
    found = paper.reported(experiment["data"], experiment["model"], experiment["protocol"], group.method)
    if found is None:
        return PaperRow(None, f"the paper does not report {paper.title(group.method)} for this setting")
    return PaperRow(found)


def why_not_comparable(group: Group, varied: frozenset[str] = frozenset()) -> str | None:
    """Why a group cannot be compared with the paper; None if it can.

    Args:
        group: What was measured.
        varied: Parameters that may differ; ``batch`` may be one.
    """
    setting = paper.setting(group.experiment["data"])
    if setting is None:
        return f"the paper does not use {group.experiment['data']}"
    return _other_stream(group, setting) or _other_method(group, setting, varied)


def _other_stream(group: Group, setting: PaperSetting) -> str | None:
    experiment = group.experiment
    architecture = paper.architecture(experiment["model"])
    known = {setting.model, "RN101"} if experiment["data"] == "cifar100c" else {setting.model}
    if architecture not in known:
        return f"the paper uses {setting.model}/openai on {setting.title}, not {experiment['model']}"
    if experiment["protocol"] not in ("mixed", "single"):
        return f"the paper has no {experiment['protocol']} stream"
    for key, value in experiment["protocol_parameters"].items():
        if value is not None:
            return f"not the whole stream: {key}={value}"
    severity = experiment["data_options"].get("severity", 5)
    if severity != 5:
        return f"severity {severity} instead of 5"
    if set(group.domains) != set(setting.domains):
        return f"{len(group.domains)} domains that are not the paper's {len(setting.domains)}"
    images = sum(group.results[0]["scores"]["images"].values())
    if images != setting.images:
        return f"{images:,} images instead of {setting.images:,}"
    return None


def _other_method(group: Group, setting: PaperSetting, varied: frozenset[str]) -> str | None:
    experiment = group.experiment
    if experiment["templates"] != "ensemble":
        return f"templates {experiment['templates']} instead of the paper's seven"
    if "batch" not in varied and experiment["batch"] != setting.batch:
        return f"batches of {experiment['batch']} instead of {setting.batch}"
    return other_parameters(group, varied)


def other_parameters(group: Group, varied: frozenset[str] = frozenset()) -> str | None:
    """The first parameter whose value is not the paper's, in words; None if all are."""
    experiment = group.experiment
    preset = find_preset(None, experiment["data"], experiment["model"])
    published = plain(preset.row(group.method, experiment["protocol"]))
    expected, own = with_defaults(group.method, published), group.parameters
    for name in own:
        if name not in varied and own[name] != expected.get(name):
            return f"{name}={own[name]} instead of {expected.get(name)}"
    return None
