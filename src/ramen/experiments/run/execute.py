"""Run experiments: finished ones are read, interrupted ones resume."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.console import Console

from ramen.experiments.plan.experiment import Experiment
from ramen.experiments.run import provenance
from ramen.experiments.run.checkpoint import Checkpoint
from ramen.experiments.run.finished import finished_result
from ramen.experiments.run.lock import lock
from ramen.experiments.run.method_run import MethodRun
from ramen.experiments.run.progress import Bars, RunProgress
from ramen.experiments.run.resources import Resources
from ramen.experiments.run.results import write_result
from ramen.models.classifier import MissingPartError
from ramen.utils.peers import Group, PeerFailedError, Peers
from ramen.utils.reported_once import ReportedElsewhereError, attempt_reported_once

_Value = TypeVar("_Value")

Missing = Literal["raise", "skip"]  # what to do about a method that needs what the model does not have


def run_experiments(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    console: Console | None = None,
    checkpoint_seconds: float = 120.0,
    on_missing: Missing = "raise",
    group: Group = None,
) -> list[dict[str, Any]]:
    """The results of the experiments, in their order; each is written to ``out`` as soon as it is finished.

    Args:
        experiments: What to run. Those whose result is in ``out`` are read, not repeated.
        out: Folder of results.
        console: Where to show progress; standard error if None.
        checkpoint_seconds: How often a run is saved, in addition to each reset of its method.
        on_missing: What to do about a method that needs what the model does not have: raise, or return
            ``{"kind": "skipped", "experiment": ..., "reason": ...}`` in place of its result, without a file.
        group: Processes that run each experiment together, and all call this; the first one writes results
            and shows progress. ``out`` is a folder that all of them see.
    """
    peers = None if group is None else Peers(group)
    console = console or Console(stderr=True)
    if peers is not None and peers.rank:
        console = Console(quiet=True)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    with Bars(console) as bars:
        runner = ExperimentRunner(Path(out), say, bars, checkpoint_seconds, peers=peers)
        return [runner.result_or_reason(experiment, on_missing) for experiment in experiments]


class ExperimentRunner:
    """Runs experiments one after the other with what they share.

    Args:
        out: Folder of results.
        say: Called with what the user must know.
        progress: Shows how far a run is.
        checkpoint_seconds: How often a run is saved, in addition to each reset of its method.
        resources: What is already loaded.
        owner: As ``lock`` takes it.
        peers: Processes that run each experiment together; the first one writes.
    """

    def __init__(
        self,
        out: Path,
        say: Callable[[str], object],
        progress: RunProgress,
        checkpoint_seconds: float,
        *,
        resources: Resources | None = None,
        owner: str | None = None,
        peers: Peers | None = None,
    ) -> None:
        self._peers, self._writes = peers, peers is None or peers.rank == 0
        self._out, self._say, self._progress = out, say, progress
        self._checkpoint_seconds, self._owner = checkpoint_seconds, owner
        self._resources = resources or Resources()
        self._said: set[str] = set()  # settings that several runs share are shown once

    def result_or_reason(self, experiment: Experiment, on_missing: Missing) -> dict[str, Any]:
        """The result, or why the experiment is skipped."""
        try:
            return self.result(experiment)
        except MissingPartError as error:
            if on_missing == "raise":
                if not self._writes:
                    raise ReportedElsewhereError(str(error)) from error
                raise
            self._say(f"{experiment.method} is skipped: {error}")
            return {"kind": "skipped", "experiment": experiment.identity(), "reason": str(error)}

    def result(self, experiment: Experiment) -> dict[str, Any]:
        """The result, from its file or from a run."""
        path = experiment.path(self._out)
        finished: Callable[[], dict[str, Any] | None]
        finished = partial(finished_result, experiment, path, self._resources)
        found = self._of_first(finished)
        if found is not None:
            return found
        with ExitStack() as stack:
            self._of_first(lambda: stack.enter_context(lock(path, self._owner)))
            found = self._of_first(finished)
            if found is not None:  # by another process, a moment ago
                return found
            run = self._start(experiment)
            checkpoint = Checkpoint(
                path, run.identity(), self._checkpoint_seconds, self._say, writes=self._writes
            )
            run = self._resumed(run, checkpoint)
            self._go(run, checkpoint)
            result = run.result()
            self._of_first(lambda: write_result(path, result))
            checkpoint.remove()
            return result

    def _of_first(self, work: Callable[[], _Value]) -> _Value:
        """What ``work`` returns; in a group, where the first process alone does it and all get its result."""
        if self._peers is None:
            return work()
        done = self._attempt(lambda: work() if self._writes else None, "running an experiment")
        values: list[_Value] = self._peers.values(done, "running an experiment")
        return values[0]

    def _attempt(self, work: Callable[[], _Value], what: str) -> _Value:
        """What ``work`` returns; in a group, if it succeeds in all processes."""
        return work() if self._peers is None else attempt_reported_once(self._peers, work, what)

    @property
    def _group(self) -> Group:
        return None if self._peers is None else self._peers.group

    def _start(self, experiment: Experiment) -> MethodRun:
        """A run from its beginning."""

        def start() -> MethodRun | MissingPartError:
            try:
                return self._prepared(experiment)
            except MissingPartError as error:  # the same in all processes, and perhaps to be skipped
                return error

        found = self._attempt(start, "preparing a run")
        if isinstance(found, MissingPartError):
            raise found
        return found

    def _prepared(self, experiment: Experiment) -> MethodRun:
        stream = self._resources.stream(experiment)
        classifier = self._resources.classifier(experiment, stream.dataset.classes)
        if stream.waiting:
            with self._progress.count("drawing", stream.waiting) as advance:
                stream.prepare(advance)
        run = MethodRun(experiment, classifier, stream, self._group)
        for line in _settings_lines(run):
            if line not in self._said:
                self._said.add(line)
                self._say(line)
        return run

    def _resumed(self, run: MethodRun, checkpoint: Checkpoint) -> MethodRun:
        """The run as of its checkpoint, if there is one."""
        if not self._of_first(lambda: checkpoint.load() is not None):
            return run
        saved = checkpoint.load()

        def restore() -> None:
            if saved is None:
                raise ValueError("it is not to be seen by every process")
            run.restore(*saved)

        unusable = (ValueError, KeyError, TypeError, StopIteration, PeerFailedError, ReportedElsewhereError)
        try:
            self._attempt(restore, "resuming a run")
        except unusable as error:
            checkpoint.set_aside(str(error))
            # the other may be half restored
            return MethodRun(run.experiment, run.classifier, run.stream, self._group)
        self._say(f"{run.experiment.method}, seed {run.experiment.seed}: resuming after {run.done:,} images.")
        return run

    def _go(self, run: MethodRun, checkpoint: Checkpoint) -> None:
        try:
            with self._progress.show(run) as update:
                run.go(checkpoint, update)
        except KeyboardInterrupt:
            if run.done:
                self._say(
                    f"Stopped after {run.done:,} of {len(run.stream):,} images. The same command resumes."
                )
            raise


def _settings_lines(run: MethodRun) -> list[str]:
    """The settings that a reader of the result must know, one line each."""
    e, classifier = run.experiment, provenance.classifier_block(run.classifier)
    steps = classifier["preprocess"]
    height, width = steps["size"]
    options = ", ".join(f"{name}={value}" for name, value in e.identity()["data_options"].items())
    parameters = ", ".join(f"{name}={value}" for name, value in e.identity()["parameters"].items())
    window = f", each at the end of a window of {e.window}" if e.window is not None else ""
    random = " (random weights: its accuracies mean nothing)" if e.model.startswith("random:") else ""
    return [
        f"model      {e.model}{random}, weights {classifier['weights'][:19]}, {e.dtype} on {e.device}",
        f"images     {width}x{height} pixels, {steps['interpolation']}, {steps['resize_mode']}",
        f"templates  {e.templates}: {len(classifier['templates'])}, first {classifier['templates'][0]!r}",
        f"data       {e.data}{f' ({options})' if options else ''}, {classifier['classes']} classes",
        f"stream     {e.protocol}, seed {e.seed}, {len(run.stream):,} images in batches of {e.batch}"
        f"{window}; resets: {provenance.reset_policy(run.stream)}",
        f"method     {e.method}, predicts with {run.method.info.predicts_with}; "
        f"{parameters or 'defaults'} (preset {e.preset or 'none'}"
        f"{'' if e.tuned is None else ', tuned by search ' + e.tuned['search']})",
    ]
