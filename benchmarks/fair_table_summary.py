"""One file with the numbers of a fair table, from the results in its store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fair_table_streams import TestedStream

from ramen.experiments.store import read_result

_SEARCH = ("search", "seeds", "domains", "budget", "zero_shot", "skipped", "cost")
_SCORES = ("average", "domains", "balanced", "calibration_error", "difference", "changes", "tail", "refused")


def summary(store: Path, streams: Sequence[TestedStream]) -> dict[str, Any]:
    """What was chosen on each stream, and the scores and the cost of each test run."""
    found: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for stream in streams:
        files = sorted((store / stream.name).rglob("*.json"))
        runs = [read_result(path) for path in files if ".partial" not in str(path)]
        if runs:
            about, settings = runs[0]["provenance"], runs[0]["experiment"]
            shared = {
                **{name: settings[name] for name in ("model", "data", "device", "dtype", "templates")},
                **{name: about[name] for name in ("classifier", "versions", "hardware", "commit")},
                "preset": runs[0]["preset"],
            }
        found[stream.name] = {
            "protocol": stream.protocol,
            "batch": stream.batch,
            "searches": _searches(store / f"tuned-{stream.name}.json"),
            "tests": [_test(run) for run in runs],
        }
    return {"kind": "fair table", **shared, "streams": found}


def _searches(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    data = read_result(path)["data"]
    methods = {
        name: {
            "space": one["space"],
            "accuracies": [trial["accuracy"] for trial in one["trials"]],
            "chosen": one["chosen"],
            "seconds": one["cost"]["seconds"],
        }
        for name, one in data["methods"].items()
    }
    return {**{name: data[name] for name in _SEARCH}, "methods": methods}


def _test(run: dict[str, Any]) -> dict[str, Any]:
    scores, cost = run["scores"], run["cost"]
    return {
        "method": run["experiment"]["method"],
        "seed": run["experiment"]["seed"],
        "images": cost["images"],
        "parameters": run["experiment"]["parameters"],
        "zero_shot": scores["zero_shot"]["average"],
        "zero_shot_domains": scores["zero_shot"]["domains"],
        **{name: scores[name] for name in _SCORES},
        "ms_an_image": cost["ms_an_image"],
        "passes": cost["passes"],
        "memory_bytes": cost["memory_bytes"],
    }
