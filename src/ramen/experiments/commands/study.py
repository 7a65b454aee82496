"""``ramen study``: a study from the command line."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.experiments.commands import options

if TYPE_CHECKING:
    from rich.console import Console

    from ramen.experiments.plan.experiment import Experiment
    from ramen.experiments.studies.study_result import ReportProgress

NAMES = ("similarity", "no-cache", "cost")
# Options that belong to one study, and what they are without being given.
_OWN: Mapping[str, Mapping[str, Any]] = {
    "similarity": {"pairs": None},
    "no-cache": {"queries": 10, "after": 1000},
    "cost": {"method": None, "batches": 5, "warm_up": 2},
}


@options.requested("seed", "seeds")
def study(
    *,
    name: Annotated[str, typer.Argument(help="similarity, no-cache or cost.")],
    request: options.Request,
    seed: Annotated[int, typer.Option(min=0, help="Decides the stream, and pairs that are drawn.")] = 0,
    pairs: Annotated[
        int | None, typer.Option(min=10, help="similarity: draw so many pairs; all of them without it.")
    ] = None,
    queries: Annotated[int | None, typer.Option(min=1, help="no-cache: how many; 10 without it.")] = None,
    after: Annotated[
        int | None, typer.Option(min=0, help="no-cache: images that fill the memory; 1000 without it.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="cost: a method; may be given again. All without it.")
    ] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="cost: batches timed; 5 without it.")] = None,
    warm_up: Annotated[int | None, typer.Option(min=0, help="cost: batches before; 2 without it.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    json_output: options.Json = False,
) -> None:
    """What similarity tells of domains, what the gradient cache saves, what methods cost."""
    from rich.console import Console

    from ramen.experiments.run.results import write_result
    from ramen.experiments.studies.study_result import show

    given: dict[str, Any] = {"pairs": pairs, "queries": queries, "after": after}
    given |= {"method": method, "batches": batches, "warm_up": warm_up}
    with options.told_errors():
        own = own_options(name, given)
        planned = replace(request, seed=[seed]).planned(_methods(name, method))
        result = run_study(name, planned, own, Console(stderr=True))
        path = result_path(out, result)
        write_result(path, result)
    if json_output:
        typer.echo(json.dumps(result, indent=2))
    else:
        show(result, Console())
    typer.echo(f"The result is in {path}", err=True)


def own_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A study's own options, with defaults; an option of another study is refused, not ignored."""
    from ramen.utils import checks

    checks.choice("NAME", name, NAMES)
    for option, value in given.items():
        if value is not None and option not in _OWN[name]:
            owner = next(study for study, options in _OWN.items() if option in options)
            raise ValueError(f"--{option.replace('_', '-')} belongs to the study {owner}, not to {name}")
    return {
        option: default if given[option] is None else given[option] for option, default in _OWN[name].items()
    }


def run_study(
    name: str, planned: "list[Experiment]", own: Mapping[str, Any], console: "Console"
) -> dict[str, Any]:
    """The study's result with its provenance; ``planned`` has the methods with their parameters."""
    from ramen.experiments.run import provenance
    from ramen.experiments.run.execute import Parts

    first, parts, started = planned[0], Parts(console), provenance.now()
    stream = parts.stream(first)
    classifier = parts.classifier(first, stream.dataset.classes)
    with _progress(console) as advance:
        result = _run(name, classifier, stream, planned, own, advance)
    identity = first.identity()
    about = ("model", "templates", "data", "data_options", "protocol", "protocol_parameters", "seed")
    result["provenance"] = {
        "experiment": {key: identity[key] for key in (*about, "batch", "device", "dtype")},
        "options": dict(own),
        "preset": first.preset,
        "parameters": {experiment.method: experiment.all_parameters() for experiment in planned},
        "classifier": provenance.classifier_block(classifier),
        "stream": stream.identity(),
        "dataset": provenance.dataset_block(stream.dataset, first.root),
        "versions": provenance.versions(),
        "hardware": provenance.hardware(classifier.device),
        "commit": provenance.commit(),
        "started": started,
        "finished": provenance.now(),
    }
    if name == "similarity":  # no method plays a part
        result["provenance"]["parameters"] = {}
    return result


def _run(
    name: str,
    classifier: Any,
    stream: Any,
    planned: "list[Experiment]",
    own: Mapping[str, Any],
    advance: "ReportProgress",
) -> dict[str, Any]:
    from ramen.experiments.studies.cost import cost_study
    from ramen.experiments.studies.no_cache import no_cache_study
    from ramen.experiments.studies.similarity import similarity_study

    first = planned[0]
    shared: dict[str, Any] = {"batch": first.batch, "advance": advance}
    if name == "similarity":
        return similarity_study(classifier, stream, pairs=own["pairs"], seed=first.seed, **shared)
    if name == "no-cache":
        return no_cache_study(
            classifier,
            stream,
            first.parameters,
            queries=own["queries"],
            after=own["after"],
            seed=first.seed,
            **shared,
        )
    return cost_study(
        classifier,
        stream,
        [experiment.method for experiment in planned],
        {experiment.method: experiment.parameters for experiment in planned},
        warm_up=own["warm_up"],
        batches=own["batches"],
        **shared,
    )


def result_path(out: Path, result: Mapping[str, Any]) -> Path:
    """Where a study's result lies; another study, or one of something else, lies elsewhere."""
    import hashlib

    about = {key: result["provenance"][key] for key in ("experiment", "options", "parameters")}
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    data = result["provenance"]["experiment"]["data"]
    return out / "studies" / f"{result['study']}-{data}-{key}.json"


def _methods(name: str, chosen: list[str] | None) -> list[str]:
    from ramen.methods._registry import list_methods

    if name == "cost":
        return chosen or list_methods()
    return ["ramen"] if name == "no-cache" else ["ensemble"]


@contextmanager
def _progress(console: "Console") -> "Iterator[ReportProgress]":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for earlier in tasks.values():
                    bars.update(earlier, visible=False)
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield advance
