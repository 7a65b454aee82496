"""``ramen study``: run a study."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.experiments.commands import options
from ramen.utils.exit_codes import exit_on_error

if TYPE_CHECKING:
    from rich.console import Console

    from ramen.experiments.plan.experiment import Experiment
    from ramen.experiments.studies.study_result import ReportProgress

NAMES = ("similarity", "no-cache", "cost", "harm", "poison", "combinations")
_DIVIDED = (
    "harm",
    "poison",
    "combinations",
)  # they have many runs; another is one computation, or measures time
# Options that belong to one study, with their defaults.
_STUDY_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "similarity": {"pairs": None},
    "no-cache": {"queries": 10, "after": 1000},
    "cost": {"method": None, "batches": 5, "warm_up": 2},
    "harm": {"method": None, "images": 1000, "seeds": 3, "clean": None},
    "poison": {
        "method": None,
        "attack": None,
        "share": None,
        "images": 500,
        "attacker_images": 250,
        "eps": 8 / 255,
        "seeds": 3,
        "baseline_seeds": 1,
        "defences": False,
    },
    "combinations": {"seeds": 3, "variant": None},
}


@options.with_experiment_options("seed", "seeds", "window", "tuned")
def study(
    *,
    name: Annotated[str, typer.Argument(help=f"{', '.join(NAMES[:-1])} or {NAMES[-1]}.")],
    request: options.ExperimentOptions,
    parallel: options.ParallelOptions,
    seed: Annotated[int, typer.Option(min=0, help="Decides the stream, and which pairs are drawn.")] = 0,
    pairs: Annotated[
        int | None, typer.Option(min=10, help="similarity: draw this many pairs. Default: use all pairs.")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(min=1, help="no-cache: how many queries. Default: 10.")
    ] = None,
    after: Annotated[
        int | None, typer.Option(min=0, help="no-cache: images that fill the memory first. Default: 1000.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="cost, harm, poison: a method; repeatable. Default: all, but variants of Ramen for harm."
        ),
    ] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="cost: batches to time. Default: 5.")] = None,
    warm_up: Annotated[
        int | None, typer.Option(min=0, help="cost: batches before those, not timed. Default: 2.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(min=1, help="harm: images per stream, 1000. poison: images of other users, 500."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="harm, poison, combinations: how many seeds, from --seed on. Default: 3."),
    ] = None,
    clean: Annotated[
        str | None, typer.Option(help="harm: the domain of clean images. Default: `clean`, if there is one.")
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="poison: entropy, target, flood or noise; repeatable. Default: all."),
    ] = None,
    share: Annotated[
        list[float] | None,
        typer.Option(help="poison: the attacker's share of the stream; repeatable. Default: 0.1, 0.2, 0.5."),
    ] = None,
    attacker_images: Annotated[
        int | None, typer.Option(min=1, help="poison: the attacker's own images. Default: 250.")
    ] = None,
    eps: Annotated[
        float | None, typer.Option(help="poison: the most that a pixel in [0, 1] changes. Default: 8/255.")
    ] = None,
    baseline_seeds: Annotated[
        int | None, typer.Option(min=1, help="poison: seeds for methods beside Ramen. Default: 1.")
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="combinations: a row of its tables, beside Ramen; repeatable. Default: all."),
    ] = None,
    defences: Annotated[
        bool | None,
        typer.Option("--defences", help="poison: also Ramen with defences that are not part of it."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    json_output: options.Json = False,
) -> None:
    """Study similarity of domains, what the gradient cache saves, cost, harm, attackers, or combinations."""
    from rich.console import Console

    from ramen.experiments.run.results import write_result
    from ramen.experiments.studies.study_result import show

    given: dict[str, Any] = {"pairs": pairs, "queries": queries, "after": after}
    given |= {"method": method, "batches": batches, "warm_up": warm_up}
    given |= {"images": images, "seeds": seeds, "clean": clean, "attack": attack, "share": share}
    given |= {"attacker_images": attacker_images, "eps": eps, "baseline_seeds": baseline_seeds}
    given |= {"defences": defences, "variant": variant}
    with exit_on_error(*_failures(parallel)):
        own = own_options(name, given)
        if name == "harm":
            _check_harm(request, method)
        if parallel.asked and name not in _DIVIDED:
            raise ValueError(
                f"--jobs and --ray belong to the studies {', '.join(_DIVIDED[:-1])} and {_DIVIDED[-1]}, "
                f"not to {name}"
            )
        request = parallel.check(request)
        planned = replace(request, seed=[seed]).plan(_methods(name, method))
        console = Console(stderr=True)
        divide = _divided(name, planned, own, out, parallel, console)
        result = run_study(name, planned, own, console, divide)
        path = result_path(out, result)
        write_result(path, result)
    if json_output:
        typer.echo(json.dumps(result, indent=2))
    else:
        show(result, Console())
    typer.echo(f"The result is in {path}", err=True)


def own_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A study's own options, with defaults; an option of another study is an error."""
    from ramen.utils import checks

    checks.choice("NAME", name, NAMES)
    for option, value in given.items():
        if value is not None and option not in _STUDY_OPTIONS[name]:
            owners = [study for study, options in _STUDY_OPTIONS.items() if option in options]
            named = " and ".join([", ".join(owners[:-1]), owners[-1]] if len(owners) > 1 else owners)
            belongs = f"belongs to the {'study' if len(owners) == 1 else 'studies'} {named}"
            raise ValueError(f"--{option.replace('_', '-')} {belongs}, not to {name}")
    return {
        option: default if given[option] is None else given[option]
        for option, default in _STUDY_OPTIONS[name].items()
    }


def _failures(parallel: options.ParallelOptions) -> list[type[Exception]]:
    """Errors that only a study in parts can raise."""
    if not parallel.asked:
        return []
    from ramen.experiments.commands.study_parts import FailedPartsError

    return [FailedPartsError]


def _divided(
    name: str,
    planned: "list[Experiment]",
    own: Mapping[str, Any],
    out: Path,
    parallel: options.ParallelOptions,
    console: "Console",
) -> Any:
    if not parallel.asked:
        return None
    from ramen.experiments.commands.study_parts import divided

    return divided(name, planned, own, out / "studies", parallel, console)


def run_study(
    name: str, planned: "list[Experiment]", own: Mapping[str, Any], console: "Console", divide: Any = None
) -> dict[str, Any]:
    """The study's result with its provenance.

    Args:
        name: The study's.
        planned: The methods with their parameters.
        own: The study's own options.
        console: Where to show progress.
        divide: Runs the parts of studies that have some, as their functions take it.
    """
    from ramen.experiments.commands import study_runs
    from ramen.experiments.run import provenance
    from ramen.experiments.run.resources import Resources
    from ramen.experiments.studies.study_result import no_progress

    first, resources, started = planned[0], Resources(), provenance.now()
    stream = resources.stream(first)
    classifier = resources.classifier(first, stream.dataset.classes)
    bars = _progress_bars(console) if divide is None else nullcontext(no_progress)  # it shows a table
    with bars as progress:
        if name == "harm":
            clean = study_runs.clean_images(resources, stream.dataset, first, own)
            result = study_runs.run_harm(classifier, stream, planned, own, clean, progress, divide)
        elif name == "poison":
            result = study_runs.run_poison(classifier, resources, planned, own, progress, divide)
        elif name == "combinations":
            result = study_runs.run_combinations(classifier, resources, planned, own, progress, divide)
        else:
            result = study_runs.run_one(name, classifier, stream, planned, own, progress)
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
    if name == "similarity":  # it uses no method
        result["provenance"]["parameters"] = {}
    if name == "harm" and not own["method"]:  # it uses variants of its own, not the preset's
        variants = result["data"]["methods"]
        result["provenance"]["parameters"] = {title: one["parameters"] for title, one in variants.items()}
        result["provenance"]["preset"] = None
    if name == "poison":  # Ramen's rows have parameters of their own
        rows = result["data"]["methods"]
        result["provenance"]["parameters"] = {label: row["parameters"] for label, row in rows.items()}
    return result


def _check_harm(request: options.ExperimentOptions, methods: list[str] | None) -> None:
    if request.protocol != "mixed":
        raise ValueError(f"--protocol: the study harm makes its own streams, got {request.protocol!r}")
    if request.settings and not methods:
        raise ValueError("--set needs --method: without it, the study harm has variants of Ramen of its own")


def result_path(out: Path, result: Mapping[str, Any]) -> Path:
    """The file of a study's result; a study with other settings has another file."""
    import hashlib

    about = {key: result["provenance"][key] for key in ("experiment", "options", "parameters")}
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    data = result["provenance"]["experiment"]["data"]
    return out / "studies" / f"{result['study']}-{data}-{key}.json"


def _methods(name: str, chosen: list[str] | None) -> list[str]:
    from ramen.methods._registry import list_methods

    if name in ("cost", "poison"):
        return chosen or list_methods()
    if name == "harm":
        return chosen or ["ramen"]
    return ["ramen"] if name in ("no-cache", "combinations") else ["ensemble"]


@contextmanager
def _progress_bars(console: "Console") -> "Iterator[ReportProgress]":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(step: str, done: int, total: int) -> None:
            if step not in tasks:
                for earlier in tasks.values():
                    bars.update(earlier, visible=False)
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done, total=total)

        yield progress
