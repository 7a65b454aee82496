"""The commands of this room: run, compare, sweep, tune, reproduce, report, models list."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.experiments.options import ExperimentOptions, Json, OutputOptions, ParallelOptions, StoreFolder
from ramen.utils.commands import (
    Imports,
    exit_on_error,
    is_first_process,
    torchrun_group,
    under_torchrun,
    with_options,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ramen.experiments.experiment import Experiment
    from ramen.experiments.render import Table
    from ramen.experiments.reproduce import Exhibit, Number, Setup
    from ramen.experiments.tables import Sweep
    from ramen.experiments.tune import Search
    from ramen.experiments.variations import Variation

# What a command needs is imported when it is known to have no mistakes: torch and pandas take seconds.

KINDS = ("accuracy", "averages", "ranking", "time", "memory", "changes")
_DEFAULT_KINDS = ("accuracy", "averages", "ranking")
_REFERENCES = ("ensemble", "entmin")  # of a sweep
_LOG_LINES = 8  # of a failed run
_Record = dict[str, Any]

# -- run ------------------------------------------------------------------------------------------------


@with_options(request=ExperimentOptions)
def run(
    *,
    method: Annotated[
        list[str] | None, typer.Option(help="A method, or `all`; repeatable. Default: ramen.")
    ] = None,
    request: ExperimentOptions,
    out: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="How often a run is saved on its way.")
    ] = 120.0,
    json_output: Json = False,
) -> None:
    """Run methods on a stream. Finished runs are not repeated, interrupted runs resume.

    Under torchrun (`torchrun --nproc-per-node 8 -m ramen run ...`) all processes share each run: one stream,
    one memory.
    """
    everything = method is not None and "all" in method
    with _reported_once(), exit_on_error():
        planned = request.plan(_every_method() if everything else method or ["ramen"])
    # with torch, which a usage error does not need
    from ramen.experiments import workers
    from ramen.utils.distributed import GroupError, ReportedElsewhereError

    try:
        with exit_on_error(GroupError), torchrun_group(planned[0].device) as group:
            records = workers.run_all(
                planned,
                out,
                checkpoint_seconds=checkpoint_seconds,
                on_missing="skip" if everything else "raise",
                group=group,
            )
    except ReportedElsewhereError:
        return
    if not is_first_process():
        return
    if json_output:
        typer.echo(json.dumps(records, indent=2))
        return
    from ramen.experiments.results import Rows, groups_of
    from ramen.experiments.tables import summary_table

    _print_tables(summary_table(Rows(groups_of([one for one in records if one["kind"] == "run"]))))
    typer.echo(f"Results are in {out}", err=True)


@contextmanager
def _reported_once() -> Iterator[None]:
    """A block in which all processes make the same mistakes, of which one reports them."""
    try:
        yield
    except typer.BadParameter as error:
        if is_first_process():
            raise
        raise typer.Exit(error.exit_code) from None


def _every_method() -> list[str]:
    """All methods, or all that can share a stream if there are several processes."""
    from ramen.methods._registry import get_method, list_methods

    names = list_methods()
    return [name for name in names if get_method(name).joins_groups] if under_torchrun() else names


def _print_tables(*tables: "Table", title: str | None = None) -> None:
    from rich.console import Console

    from ramen.experiments.render import print_tables

    console = Console()
    if title is not None:
        console.print(f"{title}\n", style="bold", highlight=False, markup=False)
    print_tables(console, tables)


# -- many runs --------------------------------------------------------------------------------------------


def run_all(planned: "Sequence[Experiment]", store: Path, parallel: ParallelOptions) -> list[_Record]:
    """The results of experiments, each of which runs once; see ``ramen.experiments.run_all``."""
    from ramen.experiments import workers

    unique = {one.key(): one for one in planned}
    found = workers.run_all(
        list(unique.values()),
        store,
        jobs=parallel.jobs,
        ray=parallel.ray,
        gpus=parallel.gpus_per_run,
        on_missing="skip",
    )
    by_key = dict(zip(unique, found, strict=True))
    return [by_key[one.key()] for one in planned]


def exit_if_failed(records: Sequence[_Record]) -> None:
    """If runs have failed, report each with the last lines of its log, and exit with 1."""
    for one in failed(records):
        typer.echo(f"failed: {one['name']}: {one['reason']}", err=True)
        if one["log"] is not None:
            typer.echo(f"  its log is {one['log']}", err=True)
            for line in _last_lines(Path(one["log"])):
                typer.echo(f"  | {line}", err=True)
    if failed(records):
        raise typer.Exit(1)


def failed(records: Sequence[_Record]) -> list[_Record]:
    """The runs that failed, each once."""
    return list({json.dumps(one["experiment"]): one for one in records if one["kind"] == "failed"}.values())


def _last_lines(log: Path) -> list[str]:
    """The end of a log; nothing if it cannot be read."""
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []


def _show(
    tables: "Sequence[Table]",
    content: Mapping[str, Any],
    records: Sequence[_Record],
    output: OutputOptions,
) -> None:
    """The end of a command: tables, or the content as JSON; then the runs that failed."""
    if output.json:
        typer.echo(json.dumps({**content, "failed": failed(records)}, indent=2))
    else:
        from ramen.experiments.render import write

        with exit_on_error():
            write(tables, output.chosen, output.out)
    exit_if_failed(records)


def _as_json(table: "Table") -> dict[str, Any]:
    return {"title": table.title, "notes": table.notes, "rows": table.records}


# -- compare --------------------------------------------------------------------------------------------


@with_options(request=ExperimentOptions, parallel=ParallelOptions, output=OutputOptions)
def compare(
    *,
    results: Annotated[
        list[Path] | None, typer.Argument(help="Result files, or folders to search for them.")
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="First run what is missing; the options below say what.")
    ] = False,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method to run; repeatable. Default: all of the paper's, or of --tuned."),
    ] = None,
    request: ExperimentOptions,
    parallel: ParallelOptions,
    store: StoreFolder = Path("results"),
    table: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(KINDS)} or all; repeatable. Default: {', '.join(_DEFAULT_KINDS)}."),
    ] = None,
    output: OutputOptions,
) -> None:
    """Compare methods in tables like the paper's, next to its numbers."""
    with exit_on_error():
        kinds = _kinds(table, output)
        if not results and not run:
            raise ValueError("give result files or folders, or --run to run experiments first")
        if parallel.asked and not run:
            raise ValueError("--jobs and --ray need --run: without it, results are only read")
        from ramen.experiments.results import all_rows, collect
        from ramen.experiments.tables import MAKERS

        found = collect(results) if results else None
        own: list[_Record] = []
        if run:
            names = method or _default_methods(request.tuned)
            own = run_all(parallel.check(request).plan(names), store, parallel)
        records = [one for one in [*(found.results if found else []), *own] if one["kind"] == "run"]
        if not records and not failed(own):
            raise ValueError("there are no results of runs to compare")
        made = [(kind, MAKERS[kind](rows)) for rows in all_rows(records) for kind in kinds]
    for warning in found.warnings if found else []:
        typer.echo(f"warning: {warning}", err=True)
    skipped = _skipped(own)
    for line in skipped:
        typer.echo(f"not run: {line}", err=True)
    content = {"tables": [{"table": kind, **_as_json(one)} for kind, one in made], "not_run": skipped}
    _show([one for _, one in made], content, own, output)


def _default_methods(tuned: Path | None) -> list[str]:
    """All of the paper's, or all that a search has chosen values for."""
    from ramen.experiments.paper import TITLES
    from ramen.experiments.tune import TunedValues

    return list(TITLES if tuned is None else TunedValues.read(tuned).chosen)


def _kinds(given: list[str] | None, output: OutputOptions) -> list[str]:
    from ramen.utils.checks import choice

    kinds = given or (_DEFAULT_KINDS[:1] if output.single else _DEFAULT_KINDS)
    for kind in kinds:
        choice("--table", kind, (*KINDS, "all"))
    chosen = list(KINDS) if "all" in kinds else list(dict.fromkeys(kinds))
    if output.single and len(chosen) > 1:
        raise ValueError(
            f"--format csv writes one kind of table, got {', '.join(chosen)}: choose with --table"
        )
    return chosen


def _skipped(records: Sequence[_Record]) -> list[str]:
    from ramen.experiments.paper import title

    left = [one for one in records if one["kind"] == "skipped"]
    return list(dict.fromkeys(f"{title(one['experiment']['method'])}: {one['reason']}" for one in left))


# -- sweep ------------------------------------------------------------------------------------------------


@with_options(request=ExperimentOptions, parallel=ParallelOptions, output=OutputOptions)
def sweep(
    *,
    vary: Annotated[
        list[str],
        typer.Option(
            help="What to vary: NAME=A,B,... for a parameter of the method or `batch`; capacity, topk, beta, "
            "lr or batch alone for the paper's values; ablation, weights or placement for variants of Ramen. "
            "Repeatable."
        ),
    ],
    method: Annotated[str, typer.Option(help="The method whose parameter is varied.")] = "ramen",
    request: ExperimentOptions,
    parallel: ParallelOptions,
    store: StoreFolder = Path("results"),
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the curves. Default: `figures` in the store.")
    ] = None,
    output: OutputOptions,
) -> None:
    """Vary a hyper-parameter or switch off parts of Ramen; zero-shot and EntMin are the references."""
    from ramen.experiments.variations import experiments, parse_variation

    tables: list[Table] = []
    notes: list[str] = []
    drawn: list[Path] = []
    with exit_on_error():
        single = output.single
        for text in vary:
            parse_variation(text, request.draft([method])[0])  # refuses a mistake before anything is loaded
        asked = parallel.check(request).plan(list(dict.fromkeys([method, *_REFERENCES])))
        bases = [one for one in asked if one.method == method]
        references = [one for one in asked if one.method != method]
        variations = [parse_variation(text, bases[0]) for text in vary]
        points = [experiments(variation, bases) for variation in variations]
        planned = [one for part in [*points, references] for one in part]
        records = run_all(planned, store, parallel)
        found = dict(zip((one.key() for one in planned), records, strict=True))
        for variation, part in zip(variations, points, strict=True):
            _write_plan(store, variation.name, part, bases, references)
            notes.append(f"{variation.name}: {variation.origin}")
            own = [found[one.key()] for one in part]
            if all(one["kind"] == "failed" for one in own):
                continue
            curve = _curve(variation, method, own, [found[one.key()] for one in references])
            tables += _tables(curve, own, with_cost=not single)
            drawn.append(_draw(curve, figures or store / "figures"))
    for line in [*notes, *(f"Figure: {path}" for path in drawn)]:
        typer.echo(line, err=True)
    content = {"tables": list(map(_as_json, tables)), "figures": list(map(str, drawn))}
    _show(tables, content, records, output)


def _write_plan(
    store: Path,
    parameter: str,
    points: "list[Experiment]",
    bases: "list[Experiment]",
    references: "list[Experiment]",
) -> None:
    """Say beside the results what they are points of: a report shows them as a curve."""
    from ramen.experiments.store import Store

    parts = {"points": points, "base": bases, "references": references}
    files = {name: [one.path(store).name for one in part] for name, part in parts.items()}
    first = points[0]
    Store(store).write_plan(
        f"{first.data}-{first.protocol}-{first.method}-{parameter}-{bases[0].key()}",
        {"view": "sweep", "parameter": parameter, "method": first.method, **files},
    )


def _curve(variation: "Variation", method: str, points: list[_Record], references: list[_Record]) -> "Sweep":
    from ramen.experiments.results import Rows, groups_of
    from ramen.experiments.tables import sweep_of

    for record in points:
        if record["kind"] == "skipped":
            raise ValueError(f"{method} cannot run here: {record['reason']}")
    runs = [one for one in (*points, *references) if one["kind"] == "run"]
    return sweep_of(Rows(groups_of(runs)), variation.name, method)


def _tables(curve: "Sweep", records: list[_Record], *, with_cost: bool) -> "list[Table]":
    from ramen.experiments.results import Rows, groups_of
    from ramen.experiments.tables import memory_table, sweep_table, time_table

    if curve.parameter != "placement" or not with_cost:
        return [sweep_table(curve)]
    rows = Rows(groups_of(records))  # the placement changes what the memory costs, not the answers
    return [sweep_table(curve), time_table(rows), memory_table(rows)]


def _draw(curve: "Sweep", folder: Path) -> Path:
    from ramen.experiments.figures import draw_sweep

    path = folder / f"{curve.data}-{curve.protocol}-{curve.method}-{curve.parameter}.png"
    draw_sweep(path, curve)
    return path


# -- tune -------------------------------------------------------------------------------------------------


@with_options("seed", "seeds", "tuned", "domain", request=ExperimentOptions, parallel=ParallelOptions)
def tune(
    *,
    method: Annotated[list[str] | None, typer.Option(help="A method; repeatable. Default: all.")] = None,
    request: ExperimentOptions,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            help="A seed that no test uses; repeatable. Default: 1000 and 1001; 0 with --without-labels.",
        ),
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
    without_labels: Annotated[
        bool,
        typer.Option(
            help="Choose by the first images of the test's own stream, without their labels; the values are "
            "accepted on that stream alone."
        ),
    ] = False,
    images: Annotated[
        int | None, typer.Option(min=1, help="With --without-labels: how many. Default: 500.")
    ] = None,
    parallel: ParallelOptions,
    store: StoreFolder = Path("results"),
    out: Annotated[
        Path | None, typer.Option(help="The file of the search's result. Default: in the store's `tuning`.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Choose hyper-parameters for all methods alike; `ramen run --tuned FILE` uses them on other streams.

    Every method gets the same number of settings to try, on domains and seeds that no test uses. A search
    that was interrupted resumes.
    """
    from ramen.experiments import tune as tuning
    from ramen.experiments.store import write_result
    from ramen.methods._registry import list_methods

    with exit_on_error():
        loaded = tuning.load_spaces(spaces)
        if images is not None and not without_labels:
            raise ValueError(f"--images needs --without-labels, got {images} without it")
        count = (images or tuning.IMAGES) if without_labels else None
        data = request.fields.get("data", "tiny")
        held_out = domain if without_labels else tuning.tuning_domains(data, domain)
        seeds = list(dict.fromkeys(seed or ((0,) if without_labels else tuning.SEEDS)))
        asked = parallel.check(replace(request, domain=held_out, seed=seeds))
        names = method or list_methods()
        tuning.plan_search(asked.draft(names), loaded, count)  # refuses a mistake before anything is loaded
        search = tuning.plan_search(asked.plan(names), loaded, count)
        if without_labels:
            from ramen.experiments.unlabelled import try_settings

            if parallel.ray is not None:
                raise ValueError("--ray must not be given with --without-labels: use --jobs")
            records = try_settings(search, store, jobs=parallel.jobs, say=partial(typer.echo, err=True))
        else:  # hidden: what is only tried must not appear in the tables of a folder of results
            records = run_all(search.experiments, store / "tuning" / ".trials", parallel)
        exit_if_failed(records)
        result = {**tuning.search_result(search, records), "provenance": _provenance(search, records)}
        path = out or search.path(store)
        write_result(path, result)
    if json_output:
        typer.echo(json.dumps(result, indent=2))
    else:
        _print_tables(tuning.chosen_table(result["data"]), title=result["title"])
    typer.echo(f"The result is in {path}; use it with --tuned {path}", err=True)


def _provenance(search: "Search", records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    runs = [one["provenance"] for one in records if one["kind"] != "skipped"]
    return {
        "experiment": search.identity(),
        "preset": search.experiments[0].preset,
        **{name: runs[0][name] for name in ("classifier", "dataset", "versions", "hardware", "commit")},
        "streams": list({one["stream"]["order"]: one["stream"] for one in runs}.values()),
        "started": min(one["started"] for one in runs),
        "finished": max(one["finished"] for one in runs),
    }


# -- reproduce ------------------------------------------------------------------------------------------


@with_options(parallel=ParallelOptions, output=OutputOptions)
def reproduce(
    *,
    table: Annotated[int | None, typer.Option(min=1, max=9, help="The number of a table.")] = None,
    figure: Annotated[int | None, typer.Option(min=2, max=10, help="The number of a figure.")] = None,
    data: Annotated[
        str | None, typer.Option(help="cifar10c, cifar100c, imagenetc5k or domainnet, if there are several.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the data; what is missing is downloaded, or made of CIFAR.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="A tag of open_clip, OpenAI's .pt or another checkpoint, a folder of transformers, or the "
            "name of any model. Default: openai."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Only 1,000 images, of one seed.")] = False,
    imports: Imports = None,
    device: Annotated[str | None, typer.Option(help="Default: cuda if available.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Default: float16 on cuda, else float32.")] = None,
    parallel: ParallelOptions,
    store: StoreFolder = Path("results"),
    output: OutputOptions,
) -> None:
    """Repeat a table or figure of the paper; without one, list them with what they take on this machine."""
    from rich.console import Console

    from ramen.experiments.reproduce import Setup, draw, fetch, find, model_of, tables

    console = Console(stderr=True)
    with exit_on_error():
        if table is None and figure is None:
            _list_exhibits(console, seeds, device, dtype, output)
            return
        if table is not None and figure is not None:
            raise ValueError("--table and --figure exclude each other: give one of them")
        exhibit, name = find(f"table {table}" if table else f"figure {figure}", data)
        if root is None:
            raise ValueError(f"--root must be given: the folder with {name}, or where it is downloaded to")
        architecture = exhibit.architecture(name)
        fetch(name, root, lambda text: console.print(text, highlight=False))
        from ramen.utils.devices import device_and_dtype_names

        places = dict(zip(("device", "dtype"), device_and_dtype_names(device, dtype), strict=True))
        model = None if weights is None else model_of(architecture, weights)
        extra = {**places, "imports": tuple(imports or ())}
        setup = Setup(name, architecture, model, str(root), seeds, quick, extra)
        found, results = _measured(exhibit, setup, store, parallel)
        title = f"{exhibit.name.capitalize()}: {name}"
        path = store / "figures" / f"{exhibit.name.replace(' ', '-')}-{name}{'-quick' if quick else ''}.png"
        draw(path, title, found)
        made = tables(exhibit, name, found)
    console.print(f"Figure: {path}", highlight=False, soft_wrap=True)
    rows = [row for one in made for row in one.records]
    content = {"exhibit": exhibit.name, "data": name, "numbers": rows, "figure": str(path)}
    _show(made, content, results, output)


def _measured(
    exhibit: "Exhibit", setup: "Setup", store: Path, parallel: ParallelOptions
) -> tuple[list["Number"], list[_Record]]:
    """The exhibit's numbers with what its runs, or its analysis, have measured."""
    from ramen.experiments.analyses import similarity, without_cache
    from ramen.experiments.reproduce import beside, runs_of, with_analyses
    from ramen.experiments.run import Loaded

    numbers = list(exhibit.makes(setup))
    runs = runs_of(numbers)
    results = run_all(runs, store, parallel) if runs else []
    found = beside(numbers, dict(zip([run.key() for run in runs], results, strict=True)), setup)
    if exhibit.name not in ("table 3", "table 4"):
        return found, results
    (own, *_), resources = setup.plan("ramen"), Loaded()
    stream = resources.stream(own)
    classifier = resources.classifier(own, stream.dataset.classes)
    if exhibit.name == "table 4":
        return with_analyses(found, setup, bins=similarity(classifier, stream, batch=own.batch)), results
    after = min(5000, len(stream) // 2)
    times = without_cache(classifier, stream, own.parameters, after=after, batch=own.batch)
    return with_analyses(found, setup, times=times), results


def _list_exhibits(
    console: "Console", seeds: int, device: str | None, dtype: str | None, output: OutputOptions
) -> None:
    """All exhibits, with what they take at the speed that this machine has."""
    from ramen.experiments.reproduce import listing, measure
    from ramen.utils.devices import device_and_dtype_names

    with console.status("timing passes on this machine"):
        speed = measure(*device_and_dtype_names(device, dtype))
    made = listing(speed, seeds)
    if output.json:
        typer.echo(json.dumps({"exhibits": made.records}, indent=2))
    else:
        from ramen.experiments.render import write

        write([made], output.chosen, output.out)


# -- report, models ---------------------------------------------------------------------------------------


def report(
    results: Annotated[list[Path], typer.Argument(help="Result files, or folders to search for them.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's heading.")] = "Results",
) -> None:
    """Write one self-contained HTML page with the tables, figures and settings of results."""
    from ramen.experiments.report import write_report

    with exit_on_error():
        found = write_report(results, out, title=title)
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{out}: {len(found.results)} runs, {len(found.others)} other results")


models = typer.Typer(no_args_is_help=True, help="Models: list.")


@models.callback()
def _models() -> None:
    """Keep ``list`` a subcommand although it is the only one."""


@models.command("list")
def _list_models(
    containing: Annotated[str, typer.Argument(help="List only names that contain this.")] = "",
    json_output: Json = False,
) -> None:
    """List the models that can be loaded by name, and the presets made for them."""
    from ramen.experiments.presets import list_models
    from ramen.models.names import FORMS

    found = list_models(containing)
    if json_output:
        typer.echo(
            json.dumps([{"name": name, "presets": presets} for name, presets in found.items()], indent=2)
        )
        return
    for name, presets in found.items():
        used = f"preset {', '.join(presets)}" if presets else ""
        typer.echo(f"{name:48} {used}".rstrip())
    typer.echo("\nForms of a model's name:", err=True)
    for form, meaning in FORMS.items():
        typer.echo(f"  {form:18} {meaning}", err=True)
