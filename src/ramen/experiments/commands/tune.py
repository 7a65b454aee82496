"""``ramen tune``: choose hyper-parameters on streams that no test uses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.experiments.commands import options
from ramen.experiments.commands.parallel import exit_if_failed, failed, run_all
from ramen.utils.exit_codes import exit_on_error

if TYPE_CHECKING:
    from ramen.experiments.plan.experiment import Experiment
    from ramen.experiments.tune.search import Search


@options.with_experiment_options("seed", "seeds", "tuned", "domain")
def tune(
    *,
    method: Annotated[list[str] | None, typer.Option(help="A method; repeatable. Default: all.")] = None,
    request: options.ExperimentOptions,
    seed: Annotated[
        list[int] | None,
        typer.Option(min=0, help="A seed that no test uses; repeatable. Default: 1000 and 1001."),
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            help="A domain that no test uses; repeatable. Default: the data set's extra corruptions."
        ),
    ] = None,
    spaces: Annotated[
        Path | None, typer.Option(help="A TOML file of search spaces, in place of the package's own.")
    ] = None,
    parallel: options.ParallelOptions,
    store: options.Store = Path("results"),
    out: Annotated[
        Path | None, typer.Option(help="The file of the search's result. Default: in the store's `tuning`.")
    ] = None,
    json_output: options.Json = False,
) -> None:
    """Choose hyper-parameters for all methods alike; `ramen run --tuned FILE` uses them on other streams.

    Every method gets the same number of settings to try, on domains and seeds that no test uses. A search
    that was interrupted resumes.
    """
    from rich.console import Console

    from ramen.experiments.run.results import write_result
    from ramen.experiments.studies.study_result import show
    from ramen.experiments.tune.search import SEEDS, plan_search, search_result, tuning_domains
    from ramen.experiments.tune.search_spaces import load_spaces

    with exit_on_error():
        loaded = load_spaces(spaces)
        held_out = tuning_domains(request.data, domain)
        seeds = list(dict.fromkeys(seed or SEEDS))
        asked = parallel.check(replace(request, domain=held_out, seed=seeds))
        names = method or _every_method()
        plan_search(asked.draft(names), loaded)  # refuses a mistake before anything is loaded
        search = plan_search(asked.plan(names), loaded)
        results = _run(search, store, parallel)
        exit_if_failed(results)
        result = {**search_result(search, results), "provenance": _provenance(search, results)}
        path = out or search.path(store)
        write_result(path, result)
    if json_output:
        typer.echo(json.dumps(result, indent=2))
    else:
        show(result, Console())
    typer.echo(f"The result is in {path}; use it with --tuned {path}", err=True)


def _every_method() -> list[str]:
    from ramen.methods._registry import list_methods

    return list_methods()


def _run(search: "Search", store: Path, parallel: options.ParallelOptions) -> list[dict[str, Any]]:
    """The results of all runs; settings that are the same experiment run once."""
    unique: dict[str, Experiment] = {run.key(): run for run in search.experiments}
    # Hidden: what is only tried must not appear in the tables of a folder of results.
    found = run_all(list(unique.values()), store / "tuning" / ".trials", parallel)
    by_key = dict(zip(unique, found, strict=True))
    if failed(found):
        return found
    return [by_key[run.key()] for run in search.experiments]


def _provenance(search: "Search", results: list[dict[str, Any]]) -> dict[str, Any]:
    from ramen.experiments.run import provenance

    runs = [one for one in results if one["kind"] == "run"]
    about = runs[0]["provenance"]
    return {
        "experiment": search.identity(),
        "preset": search.experiments[0].preset,
        **{name: about[name] for name in ("classifier", "dataset", "versions", "hardware")},
        "commit": provenance.commit(),
        "streams": list(
            {one["provenance"]["stream"]["order"]: one["provenance"]["stream"] for one in runs}.values()
        ),
        "started": min(one["provenance"]["started"] for one in runs),
        "finished": max(one["provenance"]["finished"] for one in runs),
    }
