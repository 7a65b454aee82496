"""Hyper-parameters chosen for all methods alike: with labels on other streams, or without them on its own."""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import ramen.data.catalogue as datasets
from ramen.experiments.experiment import Experiment
from ramen.experiments.render import WORDS, Column, Table, duration
from ramen.experiments.store import DamagedResultError, read_result
from ramen.experiments.values import from_plain, plain, read_toml, require_parameters
from ramen.methods._registry import describe
from ramen.utils import checks
from ramen.utils.checks import nearest

KIND = "tune"  # of a result: {"kind": "study", "study": KIND, ...}
SEEDS = (1000, 1001)  # far from those of tests, which begin at 0
SPACES = Path(__file__).with_name("search_spaces.toml")
IMAGES = 500  # at the beginning of a stream, to choose without labels
MOST_MOVEMENT = 0.7  # of embeddings: beyond it, information may grow while accuracy falls
_DIGITS = 9  # accuracies that agree in these are equal: sums may differ in the last bit
_SHARED = ("model", "templates", "data", "data_options", "protocol", "protocol_parameters", "batch")
_FACTS = ("search", "model", "data", "domains", "seeds", "protocol", "batch", "budget")
_OWN_STREAM = ("data", "data_options", "protocol", "protocol_parameters")  # what makes it, with the seed


# -- search spaces ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchSpace:
    """What is tried for a method: the values of each parameter, and where they come from, in words."""

    method: str
    grid: Mapping[str, tuple[Any, ...]]
    origin: str

    def settings(self) -> list[dict[str, Any]]:
        """All combinations, the last parameter changing fastest.

        >>> SearchSpace("tent", {"lr": (0.1, 0.2), "optimizer": ("sgd",)}, "as given").settings()
        [{'lr': 0.1, 'optimizer': 'sgd'}, {'lr': 0.2, 'optimizer': 'sgd'}]
        """
        return [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())
        ]


@dataclass(frozen=True)
class SearchSpaces:
    """The spaces of a file: grids by method, each with as many combinations as the budget says."""

    budget: int
    grids: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
    default: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # for methods with its parameters

    def of(self, method: str) -> SearchSpace:
        """The space of a registered method."""
        known = describe(method).defaults
        if method in self.grids:
            return SearchSpace(method, self.grids[method], "declared")
        if self.default and all(parameter in known for parameter in self.default):
            return SearchSpace(method, self.default, f"the default grid of {', '.join(self.default)}")
        return SearchSpace(method, {}, "nothing to choose")


def load_spaces(path: Path | None = None) -> SearchSpaces:
    """The search spaces of a TOML file; this package's own if None."""
    path = SPACES if path is None else Path(path).expanduser()
    where = f"search spaces {path}"
    content = read_toml("search spaces", path)
    if "budget" not in content:
        raise ValueError(f"{where}: budget is missing")
    budget = checks.integer(f"{where}: budget", content.pop("budget"), 1)
    grids = dict(_grids(where, content, budget))
    default = grids.pop("default", {})
    for method, grid in grids.items():
        require_parameters(where, method, grid)
    return SearchSpaces(budget, grids, default)


def _grids(
    where: str, content: Mapping[str, Any], budget: int
) -> Iterator[tuple[str, dict[str, tuple[Any, ...]]]]:
    for method, table in content.items():
        if not isinstance(table, dict) or not all(isinstance(values, list) for values in table.values()):
            raise ValueError(f"{where}: {method} must be a table of lists, got {table!r}")
        grid = {parameter: tuple(values) for parameter, values in table.items()}
        for parameter, values in grid.items():
            if len({repr(plain(value)) for value in values}) < len(values):
                raise ValueError(f"{where}: {method}.{parameter} has a value twice")
        count = math.prod(map(len, grid.values()))
        if count != budget:  # more for some would not be fair
            raise ValueError(
                f"{where}: {method} must have {budget} combinations, as every method, got {count}"
            )
        yield method, grid


# -- a search ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodSearch:
    """All settings of a method: for each of its space's, one experiment per seed."""

    space: SearchSpace
    trials: tuple[tuple[Experiment, ...], ...]


@dataclass(frozen=True)
class Search:
    """The searches of several methods on the same streams; without labels, on the first ``images`` of one."""

    budget: int
    methods: tuple[MethodSearch, ...]
    images: int | None = None

    @property
    def experiments(self) -> list[Experiment]:
        """All runs, method by method and setting by setting."""
        return [run for method in self.methods for runs in method.trials for run in runs]

    def identity(self) -> dict[str, Any]:
        """Everything that decides what is chosen, in plain values."""
        runs = self.experiments
        first = runs[0].identity()
        return {
            **{name: first[name] for name in (*_SHARED, "device", "dtype")},
            **({"window": first["window"]} if "window" in first else {}),
            **({} if self.images is None else {"labels": False, "images": self.images}),
            "seeds": sorted({run.seed for run in runs}),
            "budget": self.budget,
            "methods": {
                one.space.method: [runs[0].all_parameters() for runs in one.trials] for one in self.methods
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


def plan_search(bases: Sequence[Experiment], spaces: SearchSpaces, images: int | None = None) -> Search:
    """Replace the parameters of each method by each of its settings.

    Args:
        bases: One experiment per method and seed, as ``plan`` returns them.
        spaces: What to try.
        images: Choose without labels, on so many images at the beginning of the stream.
    """
    if images is not None and len({base.seed for base in bases}) > 1:
        raise ValueError("--seed must be given once without labels: the values are for one stream")
    if images is not None and bases[0].window is not None:
        raise ValueError(f"--window must not be given without labels, got {bases[0].window}")
    methods = []
    for name in dict.fromkeys(base.method for base in bases):
        space, own = spaces.of(name), [base for base in bases if base.method == name]
        for parameter in set(own[0].overrides) & set(space.grid):
            raise ValueError(f"--set {name}.{parameter}: this parameter is to be chosen by the search")
        trials = (
            tuple(replace(one, parameters={**one.parameters, **setting}) for one in own)
            for setting in space.settings()
        )
        methods.append(MethodSearch(space, tuple(trials)))
    return Search(spaces.budget, tuple(methods), images)


def search_result(search: Search, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The result of a search, without its provenance.

    Args:
        search: What was asked.
        results: Of its experiments, in their order; a method that could not run at all is skipped.
    """
    found = {run.key(): result for run, result in zip(search.experiments, results, strict=True)}
    methods, skipped = {}, {}
    for one in search.methods:
        trials = [[found[run.key()] for run in runs] for runs in one.trials]
        reasons = [run["reason"] for runs in trials for run in runs if run["kind"] == "skipped"]
        if reasons:
            skipped[one.space.method] = reasons[0]
        else:
            methods[one.space.method] = _chosen(one, trials)
    if not methods:
        listed = "; ".join(f"{method}: {reason}" for method, reason in skipped.items())
        raise ValueError(f"no method could run: {listed}")
    identity, blind = search.identity(), search.images is not None
    ran = {run.seed: found[run.key()] for run in search.experiments if found[run.key()]["kind"] != "skipped"}
    first = next(iter(ran.values()))
    domains = first["provenance"]["stream"]["domains"] if blind else list(first["scores"]["domains"])
    before = {
        seed: one["zero_shot_information"] if blind else one["scores"]["zero_shot"]["average"]
        for seed, one in ran.items()
    }
    data = {
        "search": search.key(),
        **{name: identity[name] for name in (*_SHARED, "device", "dtype", "seeds", "budget")},
        **({name: identity[name] for name in ("labels", "images")} if blind else {}),
        "domains": domains,
        "zero_shot": [before[seed] for seed in sorted(before)],
        "measure": _BLIND_MEASURE if blind else _MEASURE,
        "methods": methods,
        "skipped": skipped,
        "cost": _sum_of_costs([one["cost"] for one in methods.values()]),
    }
    where = f"the first {search.images} images, without labels" if blind else ", ".join(domains)
    title = f"Parameters chosen on {where} ({data['data']}, {data['protocol']})"
    return {"kind": "study", "study": KIND, "title": title, "data": data}


_MEASURE = "accuracy averaged over domains, mean of seeds; of equal ones, the first"
_BLIND_MEASURE = (
    f"information, in nats, of settings that move embeddings by at most {MOST_MOVEMENT} in the median"
)


def _chosen(one: MethodSearch, found: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    trials = [
        {
            "setting": plain(setting),
            "parameters": runs[0].all_parameters(),
            **_measured(results),
            "cost": _sum_of_costs([_cost(result["cost"]) for result in results]),
        }
        for setting, runs, results in zip(one.space.settings(), one.trials, found, strict=True)
    ]
    best = max(range(len(trials)), key=lambda place: (*_worth(trials[place]), -place))
    return {
        "space": {name: plain(values) for name, values in one.space.grid.items()},
        "origin": one.space.origin,
        "trials": trials,
        "best": best,
        "chosen": trials[best]["setting"],
        "cost": _sum_of_costs([trial["cost"] for trial in trials]),
    }


def _measured(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if "scores" not in runs[0]:  # without labels there is one
        return {name: runs[0][name] for name in ("information", "movement")}
    accuracies = [run["scores"]["average"] for run in runs]
    worst = min(min(run["scores"]["domains"].values()) for run in runs)
    return {"accuracy": fmean(accuracies), "seeds": accuracies, "worst_domain": worst}


def _worth(trial: Mapping[str, Any]) -> tuple[float, float]:
    """By which trials are compared; if all move embeddings too far, the one that moves them least is best."""
    if "accuracy" in trial:
        return 0.0, round(trial["accuracy"], _DIGITS)
    beyond = max(0.0, trial["movement"] - MOST_MOVEMENT)
    return -beyond, round(trial["information"], _DIGITS)


def _cost(cost: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "images": cost["images"],
        "seconds": sum(cost["seconds"].values()),
        "forward_passes": cost["images"] * cost["passes"]["forward"],
        "backward_passes": cost["images"] * cost["passes"]["backward"],
    }


def _sum_of_costs(costs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: sum(cost[name] for cost in costs) for name in costs[0]}


def chosen_table(data: Mapping[str, Any]) -> Table:
    """One row per method: what was chosen, and at what cost."""
    labels = data.get("labels", True)
    measure = "accuracy" if labels else "information"
    before = fmean(data["zero_shot"])
    methods = data["methods"].values()
    values = [[trial[measure] for trial in one["trials"]] for one in methods]
    best = [one["trials"][one["best"]] for one in methods]
    chosen = [
        ", ".join(f"{name}={value}" for name, value in one["chosen"].items()) or one["origin"]
        for one in methods
    ]
    costs = [one["cost"] for one in methods]
    passes = [f"{cost['forward_passes']:,.0f} / {cost['backward_passes']:,.0f}" for cost in costs]
    columns = [
        Column("method", list(data["methods"]), WORDS),
        Column("chosen", chosen, WORDS),
        Column("best" if labels else "information", [one[measure] for one in best]),
        Column("above zero-shot", [one[measure] - before for one in best], "+z.2f"),
        *([] if labels else [Column("movement", [one["movement"] for one in best])]),
        Column("worst", [min(one) for one in values]),
        Column("tried", [len(one) for one in values], "d"),
        Column("images", [cost["images"] for cost in costs], ",d"),
        Column("passes", passes, WORDS),
        Column(
            "time", [cost["seconds"] for cost in costs], WORDS, texts=[duration(c["seconds"]) for c in costs]
        ),
    ]
    if labels:
        where, seeds = ", ".join(data["domains"]), f"Mean of seeds {', '.join(map(str, data['seeds']))} in"
    else:
        where, seeds = f"the first {data['images']} images of seed {data['seeds'][0]}", "In"
    notes = [
        f"{seeds} batches of {data['batch']}; zero-shot {before:.2f}. Best and worst: of all settings tried. "
        "Images, forward / backward passes and time: of the whole search.",
        *(f"Not run: {method}: {reason}." for method, reason in data["skipped"].items()),
    ]
    if not labels:
        notes.insert(0, f"Chosen without labels: the largest {data['measure']}. For this stream alone.")
    return Table(f"{data['data']}, {data['protocol']}: {where}", columns, notes)


# -- what was chosen --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TunedValues:
    """What a search has chosen.

    Attributes:
        facts: What a result records about the search: its key, and what it was made on.
        chosen: The parameters of each method in plain values.
    """

    facts: Mapping[str, Any]
    chosen: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path | str) -> "TunedValues":
        """The values in the result of ``ramen tune``."""
        result = read_result(path)
        if result.get("kind") != "study" or result.get("study") != KIND:
            found = f"a {result.get('kind')}" + (f", {result['study']!r}" if "study" in result else "")
            raise ValueError(f"{path} is not a result of `ramen tune`, but of {found}")
        try:
            data = result["data"]
            blind = () if data.get("labels", True) else ("labels", "images", *_OWN_STREAM)
            facts = {name: data[name] for name in dict.fromkeys((*_FACTS, *blind))}
            chosen = {method: dict(one["chosen"]) for method, one in data["methods"].items()}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DamagedResultError(f"{path} is damaged: it has no {error}; run the search again") from None
        return cls(facts, chosen)

    def row(self, method: str) -> dict[str, Any]:
        """The chosen parameters of a method; none if there was nothing to choose."""
        if method not in self.chosen:
            raise ValueError(
                f"--tuned: the search did not include method {method!r}{nearest(method, self.chosen)}"
            )
        return dict(from_plain(self.chosen[method]))

    def record(self, method: str, model: str) -> dict[str, Any]:
        """What the result of a run records about where its parameters came from."""
        if model != self.facts["model"]:
            raise ValueError(
                f"--tuned: the values were chosen for model {self.facts['model']!r}, got {model!r}"
            )
        return {**self.facts, "parameters": dict(self.chosen[method])}


def check_stream(experiment: Experiment, domains: Iterable[str] = ()) -> None:
    """Raise ValueError if its parameters were chosen with labels on its stream, or without on another one.

    Args:
        experiment: What is to be run.
        domains: Those of its stream, if they are known beside those that it names.
    """
    tuned = experiment.tuned
    if tuned is None:
        return
    if not tuned.get("labels", True):
        own = {**experiment.identity(), "seeds": [experiment.seed]}
        for name in (*_OWN_STREAM, "seeds"):
            if own[name] != tuned[name]:
                raise ValueError(
                    f"--tuned: the values were chosen without labels for the stream with {name} "
                    f"{tuned[name]!r}, got {own[name]!r}: they are for that stream alone"
                )
    elif experiment.data == tuned["data"]:
        tested = (*domains, *(experiment.data_options.get("domains") or ()))
        shared = ", ".join(dict.fromkeys(domain for domain in tested if domain in tuned["domains"]))
        if shared or experiment.seed in tuned["seeds"]:
            raise ValueError(
                f"--tuned: the values were chosen on {shared or f'seed {experiment.seed}'} of "
                f"{experiment.data}: they must not be tested there; choose "
                f"{'other domains' if shared else 'another seed'}"
            )
