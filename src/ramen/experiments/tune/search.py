"""A search: every setting of every method on the same streams, and which setting is best on average."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import ramen.data.registry as datasets
from ramen.experiments.plan.experiment import Experiment
from ramen.experiments.plan.values import plain
from ramen.experiments.studies.study_result import duration, study, text_table
from ramen.experiments.tables.table import Table
from ramen.experiments.tune.search_spaces import SearchSpace, SearchSpaces
from ramen.experiments.tune.tuned_values import STUDY

SEEDS = (1000, 1001)  # far from those of tests, which begin at 0
_DIGITS = 9  # accuracies that agree in so many are equal: sums may differ in the last bit
_SHARED = ("model", "templates", "data", "data_options", "protocol", "protocol_parameters", "batch")


@dataclass(frozen=True)
class Trial:
    """One setting of a method.

    Attributes:
        setting: The parameters that are tried.
        runs: One experiment per seed.
    """

    setting: Mapping[str, Any]
    runs: tuple[Experiment, ...]


@dataclass(frozen=True)
class MethodSearch:
    """All settings of a method."""

    space: SearchSpace
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Search:
    """The searches of several methods on the same streams.

    Attributes:
        budget: How many settings each method may try.
        methods: One search each.
    """

    budget: int
    methods: tuple[MethodSearch, ...]

    @property
    def experiments(self) -> list[Experiment]:
        """All runs, method by method and setting by setting."""
        return [run for method in self.methods for trial in method.trials for run in trial.runs]

    def identity(self) -> dict[str, Any]:
        """Everything that decides what is chosen, in plain values."""
        runs = self.experiments
        first = runs[0].identity()
        return {
            **{name: first[name] for name in (*_SHARED, "device", "dtype")},
            **({"window": first["window"]} if "window" in first else {}),
            "seeds": sorted({run.seed for run in runs}),
            "budget": self.budget,
            "methods": {
                one.space.method: [trial.runs[0].all_parameters() for trial in one.trials]
                for one in self.methods
            },
        }

    def key(self) -> str:
        """Twelve hex digits; searches with the same key choose the same values."""
        text = json.dumps(self.identity(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def path(self, out: Path) -> Path:
        """The file of its result."""
        first = self.experiments[0]
        return Path(out) / "tuning" / f"{first.data}-{first.protocol}-{self.key()}.json"


def tuning_domains(data: str, given: Sequence[str] | None) -> list[str]:
    """The domains to tune on: the data set's extra ones, or those that are given if it has none."""
    extra = datasets.describe(data).extra_domains
    if not extra and not given:
        raise ValueError(
            f"--domain must name domains that will not be tested: data set {data!r} has no extra ones"
        )
    tested = [domain for domain in given or () if extra and domain not in extra]
    if tested:
        raise ValueError(
            f"--domain must be one of {', '.join(extra)} for data set {data!r}, whose other domains are for "
            f"tests, got {', '.join(tested)}"
        )
    return list(given or extra)


def plan_search(bases: Sequence[Experiment], spaces: SearchSpaces) -> Search:
    """Replace the parameters of each method by each of its settings.

    Args:
        bases: One experiment per method and seed, as ``plan`` returns them.
        spaces: What to try.
    """
    by_method: dict[str, list[Experiment]] = {}
    for base in bases:
        by_method.setdefault(base.method, []).append(base)
    return Search(
        spaces.budget, tuple(_method_search(spaces.of(name), runs) for name, runs in by_method.items())
    )


def _method_search(space: SearchSpace, bases: Sequence[Experiment]) -> MethodSearch:
    fixed = [name for name in bases[0].overrides if name in space.grid]
    if fixed:
        raise ValueError(f"--set {space.method}.{fixed[0]}: this parameter is to be chosen by the search")
    trials = [
        Trial(setting, tuple(replace(one, parameters={**one.parameters, **setting}) for one in bases))
        for setting in space.settings()
    ]
    return MethodSearch(space, tuple(trials))


def search_result(search: Search, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The result of a search, without its provenance.

    Args:
        search: What was asked.
        results: Of its experiments, in their order; a method that could not run at all is skipped.
    """
    found = {run.key(): result for run, result in zip(search.experiments, results, strict=True)}
    methods, skipped = {}, {}
    for one in search.methods:
        runs = [found[run.key()] for trial in one.trials for run in trial.runs]
        reasons = [run["reason"] for run in runs if run["kind"] == "skipped"]
        if reasons:
            skipped[one.space.method] = reasons[0]
        else:
            methods[one.space.method] = _chosen(one, found)
    if not methods:
        listed = "; ".join(f"{method}: {reason}" for method, reason in skipped.items())
        raise ValueError(f"no method could run: {listed}")
    first = next(result for result in found.values() if result["kind"] == "run")
    identity = search.identity()
    data = {
        "search": search.key(),
        **{name: identity[name] for name in (*_SHARED, "device", "dtype", "seeds", "budget")},
        "domains": list(first["scores"]["domains"]),
        "zero_shot": _zero_shot(search, found),
        "measure": "accuracy averaged over domains, mean of seeds; of equal ones, the first",
        "methods": methods,
        "skipped": skipped,
        "cost": _sum_of_costs([one["cost"] for one in methods.values()]),
    }
    title = f"Parameters chosen on {', '.join(data['domains'])} ({data['data']}, {data['protocol']})"
    return study(STUDY, title, [chosen_table(data)], data)


def _chosen(one: MethodSearch, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    trials = []
    for trial in one.trials:
        runs = [found[run.key()] for run in trial.runs]
        accuracies = [run["scores"]["average"] for run in runs]
        trials.append(
            {
                "setting": plain(trial.setting),
                "parameters": trial.runs[0].all_parameters(),
                "accuracy": fmean(accuracies),
                "seeds": accuracies,
                "worst_domain": min(min(run["scores"]["domains"].values()) for run in runs),
                "cost": _sum_of_costs([_cost(run) for run in runs]),
            }
        )
    best = max(range(len(trials)), key=lambda place: (round(trials[place]["accuracy"], _DIGITS), -place))
    return {
        "space": {name: plain(values) for name, values in one.space.grid.items()},
        "origin": one.space.origin,
        "trials": trials,
        "best": best,
        "chosen": trials[best]["setting"],
        "cost": _sum_of_costs([trial["cost"] for trial in trials]),
    }


def _cost(run: Mapping[str, Any]) -> dict[str, Any]:
    cost = run["cost"]
    return {
        "images": cost["images"],
        "seconds": sum(cost["seconds"].values()),
        "forward_passes": cost["images"] * cost["passes"]["forward"],
        "backward_passes": cost["images"] * cost["passes"]["backward"],
    }


def _sum_of_costs(costs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: sum(cost[name] for cost in costs) for name in costs[0]}


def _zero_shot(search: Search, found: Mapping[str, Mapping[str, Any]]) -> list[float]:
    """The accuracy of zero-shot on each seed's stream."""
    by_seed = {
        run.seed: found[run.key()]["scores"]["zero_shot"]["average"]
        for run in search.experiments
        if found[run.key()]["kind"] == "run"
    }
    return [by_seed[seed] for seed in sorted(by_seed)]


def chosen_table(data: Mapping[str, Any]) -> Table:
    """One row per method: what was chosen, and at what cost."""
    before = fmean(data["zero_shot"])
    rows = []
    for method, one in data["methods"].items():
        accuracies = [trial["accuracy"] for trial in one["trials"]]
        values = ", ".join(f"{name}={value}" for name, value in one["chosen"].items())
        cost = one["cost"]
        rows.append(
            [
                method,
                values or one["origin"],
                f"{max(accuracies):.2f}",
                f"{max(accuracies) - before:+z.2f}",
                f"{min(accuracies):.2f}",
                str(len(accuracies)),
                f"{cost['images']:,}",
                f"{cost['forward_passes']:,.0f} / {cost['backward_passes']:,.0f}",
                duration(cost["seconds"]),
            ]
        )
    skipped = [f"Not run: {method}: {reason}." for method, reason in data["skipped"].items()]
    seeds = ", ".join(map(str, data["seeds"]))
    heads = ["method", "chosen", "best", "above zero-shot", "worst", "tried", "images", "passes", "time"]
    return text_table(
        f"{data['data']}, {data['protocol']}: {', '.join(data['domains'])}",
        heads,
        rows,
        f"Mean of seeds {seeds} in batches of {data['batch']}; zero-shot {before:.2f}. Best and worst: of "
        "the settings that were tried. Images, forward / backward passes and time: of the whole search.",
        *skipped,
    )
