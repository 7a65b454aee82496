"""Results of the paper's experiments with chosen accuracies."""

from typing import Any

from ramen.experiments import paper
from ramen.experiments.presets import find_preset
from ramen.experiments.values import plain
from tests.fakes.results import sample_result


def published_result(
    method: str = "ramen",
    *,
    data: str = "cifar10c",
    model: str | None = None,
    protocol: str = "mixed",
    seed: int = 0,
    offset: float = 0.0,
    average: float | None = None,
    overrides: dict[str, Any] | None = None,
    **experiment: Any,
) -> dict[str, Any]:
    """A result of the whole stream: the paper's accuracies plus ``offset``, or ``average`` everywhere."""
    setting = paper.SETTINGS[data]
    model = model or f"{setting.model}/openai"
    result = sample_result(
        method, seed=seed, data=data, model=model, protocol=protocol, domains=setting.domains
    )
    preset = find_preset(None, data, model)
    result["preset"], result["overrides"] = preset.name, overrides or {}
    parameters = plain({**preset.row(method, protocol), **(overrides or {})})
    result["experiment"] |= {"parameters": parameters, "batch": setting.batch, **experiment}
    if average is None:
        reported = paper.reported(data, model, protocol, method)
        accuracies = {name: reported[name].mean + offset for name in setting.domains}
    else:
        accuracies = dict.fromkeys(setting.domains, average)
    scores = result["scores"]
    scores["domains"] = accuracies
    scores["average"] = sum(accuracies.values()) / len(accuracies)
    scores["images"] = dict.fromkeys(setting.domains, setting.images // len(setting.domains))
    scores["images"][setting.domains[0]] += setting.images - sum(scores["images"].values())
    return result
