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
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from fair_table_streams import EACH_BY_ITSELF, STREAMS, TestedStream
from fair_table_summary import summary

import ramen
from ramen.data.drawings.domains import DOMAINS, EXTRA_DOMAINS, draw_domain
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.formats.tiny import LazyDrawings
from ramen.experiments.plan.experiment import Experiment, plan
from ramen.experiments.run.finished import finished_result
from ramen.experiments.run.queue.experiment_queue import ExperimentJob
from ramen.experiments.run.queue.job import JobDesk
from ramen.experiments.run.queue.local_processes import LocalProcesses, visible_gpus
from ramen.experiments.run.queue.messages import JobDied, JobEnd
from ramen.experiments.run.resources import Resources
from ramen.experiments.run.results import write_result
from ramen.experiments.tune.search import MethodSearch, Search, plan_search, search_result
from ramen.experiments.tune.search_spaces import load_spaces
from ramen.experiments.tune.tuned_values import TunedValues
from ramen.methods._registry import describe

SEARCH_SEED, TEST_SEEDS = 1000, (0, 1, 2)
_PICTURES = 300  # per domain of the data set tiny
_UNFINISHED = "its search was not finished in the time given"


@dataclass
class DrawnJob(ExperimentJob):
    """An experiment whose drawings were made before: otherwise each process would draw them all again."""

    drawings: Path | None = None

    def run(self, desk: JobDesk) -> dict[str, Any]:
        """Load the drawings, then run as any other."""
        stream = desk.resources.stream(self.experiment)
        for domain in stream.dataset.domains:
            if (
                self.drawings is not None
                and isinstance(domain.images, LazyDrawings)
                and domain.images.waiting
            ):
                vars(domain.images)["_pixels"] = np.load(self.drawings / f"{domain.name}.npy")
        return super().run(desk)


@dataclass
class Entry:
    """A method on a stream: its search, then its tests."""

    stream: TestedStream
    search: Search  # of all methods on this stream
    own: MethodSearch
    trials: dict[str, dict[str, Any] | None] = field(default_factory=dict)  # results by key
    tests: list[Experiment] = field(default_factory=list)

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
        entry.trials = {run.key(): None for trial in entry.own.trials for run in trial.runs}
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


class FairQueue:
    """Runs searches and tests in processes, until all is done or the time is over.

    Args:
        arguments: Of the command.
        entries: What to run, the most urgent first.
        executor: What runs it.
        drawings: The folder of the drawings, if the data set has them.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        entries: list[Entry],
        executor: LocalProcesses,
        drawings: Path | None,
    ) -> None:
        self._arguments, self._executor, self._drawings = arguments, executor, drawings
        self._start, self._owner, self._resources = time.monotonic(), secrets.token_hex(4), Resources()
        self._running: dict[int, Callable[[dict[str, Any]], None]] = {}
        self._names: dict[int, str] = {}
        self._waiting: list[tuple[Experiment, Path, Callable[[dict[str, Any]], None]]] = []
        self._number = self._finished = 0
        for entry in entries:
            runs = {run.key(): run for trial in entry.own.trials for run in trial.runs}  # equal ones run once
            for run in runs.values():
                self._waiting.append((run, arguments.store / ".trials", self._after_trial(entry, run)))

    def run(self) -> None:
        """Return when everything is done, or when the time is over."""
        self._read_finished()
        while self._waiting or self._running:
            if time.monotonic() - self._start > self._arguments.seconds:
                self._stop()
                return
            while self._waiting and self._executor.has_room():
                self._submit(*self._waiting.pop(0))
            self._receive()

    def _read_finished(self) -> None:
        """Take what the store has before anything is run; a search that is finished adds its tests."""
        left = []
        while self._waiting:
            run, out, then = self._waiting.pop(0)
            found = finished_result(run, run.path(out), self._resources)
            if found is None:
                left.append((run, out, then))
            else:
                then(found)
        self._waiting = left

    def _submit(self, run: Experiment, out: Path, then: Callable[[dict[str, Any]], None]) -> None:
        found = finished_result(run, run.path(out), self._resources)
        if found is not None:
            then(found)
            return
        self._number += 1
        self._running[self._number] = then
        job = DrawnJob(run, out, self._owner, on_missing="skip", drawings=self._drawings)
        self._names[self._number] = job.name
        self._executor.submit(self._number, job)

    def _receive(self) -> None:
        for number, message in self._executor.wait(0.2):
            if number not in self._running or not isinstance(message, JobEnd | JobDied):
                continue
            then = self._running.pop(number)
            if isinstance(message, JobEnd) and message.state == "finished":
                self._finished += 1
                self._say(number, message.value["kind"])
                then(message.value)
            elif isinstance(message, JobEnd) and message.state == "stopped":
                continue
            else:
                self._say(number, f"failed: {message.reason}")
                then({"kind": "skipped", "reason": f"a run failed: {message.reason}"})

    def _say(self, number: int, what: str) -> None:
        seconds = time.monotonic() - self._start
        print(f"{seconds:6.1f} s  {self._finished:5d} done  {self._names[number]}: {what}", flush=True)

    def _stop(self) -> None:
        """Let running jobs save what they did."""
        print(
            f"The time is over: {len(self._waiting)} runs wait, {len(self._running)} are stopped.", flush=True
        )
        self._waiting = []
        self._executor.stop()
        until = time.monotonic() + 20
        while self._running and time.monotonic() < until:
            self._receive()

    def _after_trial(self, entry: Entry, run: Experiment) -> Callable[[dict[str, Any]], None]:
        def then(result: dict[str, Any]) -> None:
            entry.trials[run.key()] = result
            if not self._waiting_for(entry):
                values = chosen_values(entry)
                if values is not None:
                    entry.tests = plan_stream(
                        self._arguments, entry.stream, [entry.method], TEST_SEEDS, tuned=values
                    )
                    tests = [(one, self._arguments.store / entry.stream.name, _ignore) for one in entry.tests]
                    self._waiting[:0] = tests

        return then

    def _waiting_for(self, entry: Entry) -> bool:
        return any(result is None for result in entry.trials.values())


def _ignore(result: dict[str, Any]) -> None:
    """Tests need no more than their file."""


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


def draw(store: Path, jobs: int) -> Path:
    """All drawings of the data set tiny, each domain in one file."""
    folder = store / ".drawings"
    folder.mkdir(parents=True, exist_ok=True)
    left = [name for name in (*EXTRA_DOMAINS, *DOMAINS) if not (folder / f"{name}.npy").exists()]
    with ProcessPoolExecutor(max(1, jobs)) as pool:
        for name, pixels in zip(left, pool.map(_draw_one, left), strict=True):
            np.save(folder / f"{name}.npy", pixels)
    return folder.resolve()


def _draw_one(domain: str) -> np.ndarray:
    return draw_domain(domain, list(OBJECTS), _PICTURES, 0)


def main() -> None:
    arguments = parsed()
    drawings = draw(arguments.store, arguments.jobs) if arguments.tests is None else None
    entries = plan_entries(arguments)
    with LocalProcesses(
        arguments.jobs, gpus=visible_gpus() if arguments.device == "cuda" else []
    ) as processes:
        FairQueue(arguments, entries, processes, drawings).run()
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
