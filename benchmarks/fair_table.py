"""Every method with parameters that were chosen alike, on four streams of one model: the fair table.

    python benchmarks/fair_table.py --device cuda --dtype float32 --jobs 12 --store results/fair
    python benchmarks/fair_table.py --model stored:FOLDER --classes cifar10 --tests A.npz --searches B.npz

For each stream and method: the search of `ramen tune` on domains and seeds that no test uses, then three test
runs of `ramen compare --tuned` with what it chose. All runs go through one queue, the cheap ones first, and
the tests of a method start as soon as its search is finished. Every run is a file in the store; the same
command resumes, also after `--seconds`, when it stops by itself. `--out` gets one file with the numbers.
Commands for other methods or streams may share a store at the same time. Afterwards, the command for all of
them with `--seconds 0` runs nothing and writes what is there.
"""

import argparse
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fair_table_streams import EACH_BY_ITSELF, STREAMS, TestedStream
from fair_table_summary import summary
from rich.console import Console

import ramen
from ramen.data.drawings.tiny import EXTRA_DOMAINS
from ramen.experiments.experiment import Experiment, plan
from ramen.experiments.run import Loaded
from ramen.experiments.store import Store, write_result
from ramen.experiments.tune import (
    MethodSearch,
    Search,
    TunedValues,
    load_spaces,
    plan_search,
    search_result,
)
from ramen.experiments.workers import run_in
from ramen.methods._registry import describe
from ramen.utils.pools import Pool, open_pool
from ramen.utils.signals import StoppedError

SEARCH_SEED, TEST_SEEDS = 1000, (0, 1, 2)
_UNFINISHED = "its search was not finished in the time given"


@dataclass
class Entry:
    """A method on a stream: its search, then its tests."""

    stream: TestedStream
    search: Search  # of all methods on this stream
    own: MethodSearch
    trials: dict[str, dict[str, Any] | None] = field(default_factory=dict)  # results by key

    @property
    def runs(self) -> list[Experiment]:
        """Of the search."""
        return [run for runs in self.own.trials for run in runs]

    @property
    def method(self) -> str:
        """Its name."""
        return self.own.space.method

    @property
    def searched(self) -> bool:
        """Whether all runs of its search are finished."""
        return all(result is not None and result["kind"] == "run" for result in self.trials.values())

    def expected_cost(self) -> float:
        """Passes of batches in all: what decides who comes first."""
        info = describe(self.method)
        return (info.forwards + 2 * info.backwards) * self.stream.expected_batches(len(self.own.trials))


def plan_entries(arguments: argparse.Namespace) -> list[Entry]:
    """All methods on all streams, cheap ones first."""
    entries = []
    for stream in arguments.streams:
        names = [name for name in arguments.methods if name not in stream.left_out]
        bases = plan_stream(arguments, stream, names, (SEARCH_SEED,), search=True)
        search = plan_search(bases, load_spaces())
        entries += [Entry(stream, search, own) for own in search.methods]
    for entry in entries:
        entry.trials = dict.fromkeys(run.key() for run in entry.runs)
    return sorted(entries, key=Entry.expected_cost)


def plan_stream(
    arguments: argparse.Namespace,
    stream: TestedStream,
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    search: bool = False,
    tuned: TunedValues | None = None,
) -> list[Experiment]:
    """The experiments of methods on a stream, or on that of its search."""
    root, options = None, {}
    if arguments.tests is not None:
        root = str(arguments.searches if search else arguments.tests)
        options["classes"] = arguments.classes
    if search:
        options["domains"] = list(EXTRA_DOMAINS)
    per_domain = stream.search_images if search else stream.test_images
    return plan(
        methods,
        model=arguments.model,
        data="tiny" if root is None else "arrays",
        root=root,
        protocol=stream.protocol,
        seeds=seeds,
        preset=arguments.preset,
        data_options=options,
        protocol_parameters={} if per_domain is None else {"per_domain": per_domain},
        batch=stream.batch,
        device=arguments.device,
        dtype=arguments.dtype,
        tuned=tuned,
    )


def chosen_values(entry: Entry) -> TunedValues | None:
    """What the method's search has chosen; None if it was skipped."""
    if not entry.searched:
        return None
    own = Search(entry.search.budget, (entry.own,))
    results = [entry.trials[run.key()] or {} for run in own.experiments]
    data = search_result(own, results)["data"]
    names = ("model", "data", "domains", "seeds", "protocol", "batch", "budget")
    # the key of its own search: which other methods a command names does not change its tests
    facts = {"search": own.key(), **{name: data[name] for name in names}}
    return TunedValues(facts, {entry.method: data["methods"][entry.method]["chosen"]})


class Runs:
    """Runs what the stores lack, until the time is over.

    Args:
        pool: Where.
        seconds: From now on.
    """

    def __init__(self, pool: Pool, seconds: float) -> None:
        self._pool, self._end, self._loaded = pool, time.monotonic() + seconds, Loaded()

    def results(self, runs: Sequence[Experiment], folder: Path) -> dict[str, dict[str, Any] | None]:
        """The results by key; None for what is not finished."""
        store = Store(folder)
        found = {run.key(): store.result(run, self._loaded.stream) for run in runs}
        left = [run for run in runs if found[run.key()] is None]
        remaining = self._end - time.monotonic()
        if not left:
            return found
        if remaining <= 0:
            print(f"The time is over: {len(left)} runs wait.", flush=True)
            return found
        over = threading.Timer(min(remaining, threading.TIMEOUT_MAX), os.kill, (os.getpid(), signal.SIGTERM))
        over.start()
        try:
            done = run_in(self._pool, left, store, console=Console(), on_missing="skip")
        except StoppedError:
            if time.monotonic() < self._end:  # somebody else asked
                raise
            return {run.key(): store.result(run, self._loaded.stream) for run in runs}
        finally:
            over.cancel()
        for run, record in zip(left, done, strict=True):
            failed = record["kind"] == "failed"
            found[run.key()] = (
                {"kind": "skipped", "reason": f"a run failed: {record['reason']}"} if failed else record
            )
        return found


def run_everything(arguments: argparse.Namespace, entries: Sequence[Entry], runs: Runs) -> None:
    """All searches, then the tests of what they have chosen."""
    found = runs.results([run for entry in entries for run in entry.runs], arguments.store / ".trials")
    for entry in entries:
        entry.trials = {key: found[key] for key in entry.trials}
    for stream in arguments.streams:
        tests = [
            run
            for entry in entries
            if entry.stream is stream and (values := chosen_values(entry)) is not None
            for run in plan_stream(arguments, stream, [entry.method], TEST_SEEDS, tuned=values)
        ]
        runs.results(tests, arguments.store / stream.name)


def write_searches(arguments: argparse.Namespace, entries: Sequence[Entry]) -> None:
    """The result of each stream's search, as `ramen tune` writes it; what is unfinished is named there."""
    for stream in arguments.streams:
        own = [entry for entry in entries if entry.stream is stream]
        if not own:  # all methods are left out
            continue
        found = {key: result for entry in own for key, result in entry.trials.items()}
        search = own[0].search
        missing = {"kind": "skipped", "reason": _UNFINISHED}
        results = [found[run.key()] or missing for run in search.experiments]
        if any(entry.searched for entry in own):
            write_result(arguments.store / f"tuned-{stream.name}.json", search_result(search, results))


def main() -> None:
    arguments = parsed()
    entries = plan_entries(arguments)
    with open_pool(arguments.jobs, None, None, arguments.device) as pool:
        run_everything(arguments, entries, Runs(pool, arguments.seconds))
    write_searches(arguments, entries)
    if arguments.out is not None:
        write_result(arguments.out, summary(arguments.store, arguments.streams))


def parsed() -> argparse.Namespace:
    """The arguments of the command, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="as `ramen run` takes it; by default the tiny CLIP")
    parser.add_argument(
        "--tests", type=Path, help="test images as the data set `arrays` takes them; by default drawings"
    )
    parser.add_argument(
        "--searches", type=Path, help="images to choose parameters with: the four extra corruptions"
    )
    parser.add_argument("--classes", help="class names, as the data set `arrays` takes them")
    parser.add_argument("--preset", help="parameters that are not searched")
    parser.add_argument("--method", action="append", dest="methods", help="may be repeated; by default all")
    parser.add_argument("--stream", action="append", choices=STREAMS, help="may be repeated; by default all")
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="STREAM:METHOD", help="may be repeated"
    )
    parser.add_argument("--limit", type=int, help="at most so many images per domain, to try the command")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--store", type=Path, default=Path("results/fair"), help="the folder of all runs")
    parser.add_argument("--out", type=Path, help="write the numbers of all runs in the store as JSON")
    arguments = parser.parse_args()
    arrays = arguments.tests, arguments.searches, arguments.classes, arguments.model
    if any(value is None for value in arrays) and any(value is not None for value in arrays):
        parser.error("--model, --tests, --searches and --classes belong together")
    arguments.methods = arguments.methods or ramen.list_methods()
    arguments.store = arguments.store.resolve()
    pairs = [pair.partition(":")[::2] for pair in arguments.leave_out]
    arguments.streams = [
        replace(
            STREAMS[name].limited(arguments.limit),
            left_out=(
                *(EACH_BY_ITSELF if STREAMS[name].same_images_as_mixed else ()),
                *(method for stream, method in pairs if stream == name),
            ),
        )
        for name in arguments.stream or STREAMS
    ]
    return arguments


if __name__ == "__main__":
    main()
