"""Run experiments: those that are finished are read, those that were broken off go on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

import ramen.data.registry as datasets
from ramen.data.dataset import Dataset
from ramen.data.streams.stream import Stream, find_protocol, make_stream
from ramen.experiments.plan.experiment import Experiment
from ramen.experiments.plan.values import plain
from ramen.experiments.run import provenance
from ramen.experiments.run.checkpoint import Checkpoint, lock
from ramen.experiments.run.method_run import MethodRun
from ramen.experiments.run.progress import Bars
from ramen.experiments.run.results import DamagedResultError, read_result, write_result
from ramen.models.by_name import load_model
from ramen.models.classifier import MissingPartError, ZeroShotClassifier


def run_experiments(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    console: Console | None = None,
    checkpoint_seconds: float = 120.0,
    on_missing: Literal["raise", "skip"] = "raise",
) -> list[dict[str, Any]]:
    """The results of the experiments, in their order; each is in its file in ``out`` as soon as it is done.

    Args:
        experiments: What to run. Those whose result lies in ``out`` are read, not repeated.
        out: Folder of results.
        console: Where to show how far it is; standard error if None.
        checkpoint_seconds: How often a run that is under way is saved, beside each reset of its method.
        on_missing: What to do about a method that needs what the model does not have: raise, or give
            ``{"kind": "skipped", "experiment": ..., "reason": ...}`` in place of its result, in no file.
    """
    console = console or Console(stderr=True)
    parts = Parts(console)
    results = []
    with Bars(console) as bars:
        for experiment in experiments:
            try:
                results.append(_result(experiment, Path(out), parts, bars, checkpoint_seconds))
            except MissingPartError as error:
                if on_missing == "raise":
                    raise
                parts.say(f"{experiment.method} is left out: {error}")
                results.append({"kind": "skipped", "experiment": experiment.identity(), "reason": str(error)})
    return results


def _result(
    experiment: Experiment, out: Path, parts: "Parts", bars: Bars, checkpoint_seconds: float
) -> dict[str, Any]:
    path = experiment.path(out)
    if (found := _finished(experiment, path, parts)) is not None:
        return found
    with lock(path):
        if (found := _finished(experiment, path, parts)) is not None:  # by another process, a moment ago
            return found
        run = parts.start(experiment)
        checkpoint = Checkpoint(path, run.identity(), checkpoint_seconds, parts.say)
        run = _continued(run, checkpoint, parts)
        try:
            with bars.show(run) as advance:
                run.go(checkpoint, advance)
        except KeyboardInterrupt:
            if run.done:
                parts.say(
                    f"Stopped after {run.done:,} of {len(run.stream):,} images. The same command goes on."
                )
            raise
        result = run.result()
        write_result(path, result)
        checkpoint.remove()
        return result


def _continued(run: MethodRun, checkpoint: Checkpoint, parts: "Parts") -> MethodRun:
    """The run as far as it had come."""
    saved = checkpoint.load()
    if saved is None:
        return run
    try:
        run.restore(*saved)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        checkpoint.set_aside(str(error))
        return MethodRun(run.experiment, run.classifier, run.stream)  # the other may be half restored
    parts.say(f"{run.experiment.method}, seed {run.experiment.seed}: going on after {run.done:,} images.")
    return run


def _finished(experiment: Experiment, path: Path, parts: "Parts") -> dict[str, Any] | None:
    """The result in the file, if it is of this experiment; None where there is no file."""
    try:
        result = read_result(path)
    except FileNotFoundError:
        return None
    try:
        recorded = result["provenance"]["method"]["parameters"]
        same = {**result["experiment"], "parameters": recorded} == {
            **experiment.identity(),
            "parameters": experiment.all_parameters(),
        }
        data = {"root": None, **result["provenance"]["dataset"]}
    except (KeyError, TypeError) as error:
        raise DamagedResultError(f"{path} is no result of a run: it has no {error}; remove it") from None
    if not same:
        raise ValueError(f"{path} is the result of another experiment; remove it, or choose another folder")
    _check_data(experiment, path, data, parts)
    return result


def _check_data(experiment: Experiment, path: Path, recorded: dict[str, Any], parts: "Parts") -> None:
    """Data in another place may have moved there, or may be others: the result must not stand for those."""
    root = None if experiment.root is None else str(Path(experiment.root).expanduser().resolve())
    if recorded["root"] == root:
        return
    found = provenance.dataset_block(parts.stream(experiment).dataset, None)
    differing = [key for key in found if key != "root" and found[key] != recorded.get(key)]
    if differing:
        raise ValueError(
            f"{path} is of other data, in {recorded['root']}: {root} differs in {', '.join(differing)}; "
            "choose another folder for results"
        )


class Parts:
    """Classifiers, data sets and streams, each made once for the experiments that share it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._datasets: dict[str, Dataset] = {}
        self._streams: dict[str, Stream] = {}
        self._classifier: tuple[str, ZeroShotClassifier] | None = None  # one at a time: they are large
        self._told: set[str] = set()

    def say(self, text: str) -> None:
        """To the user."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def start(self, experiment: Experiment) -> MethodRun:
        """A fresh run, and what there is to know of it on the console."""
        stream = self.stream(experiment)
        run = MethodRun(experiment, self.classifier(experiment, stream.dataset.classes), stream)
        for line in describe_run(run):
            if line not in self._told:  # what several runs have in common is said once
                self._told.add(line)
                self.say(line)
        return run

    def classifier(self, experiment: Experiment, classes: Sequence[str]) -> ZeroShotClassifier:
        """The model of an experiment."""
        e = experiment
        key = repr((e.model, e.templates, e.device, e.dtype, tuple(classes)))
        if self._classifier is None or self._classifier[0] != key:
            self._classifier = None  # its memory is free before the next is loaded
            same_names = datasets.describe(e.data).same_names
            loaded = load_model(e.model, classes, e.templates, e.device, e.dtype, allow_same_names=same_names)
            self._classifier = key, loaded
        return self._classifier[1]

    def stream(self, experiment: Experiment) -> Stream:
        """The stream of an experiment."""
        e = experiment
        key = repr((e.data, e.root, plain(e.data_options), e.protocol, plain(e.protocol_parameters), e.seed))
        if key not in self._streams:
            self._streams[key] = self._make_stream(e)
        return self._streams[key]

    def _make_stream(self, e: Experiment) -> Stream:
        options = dict(e.data_options)
        if not find_protocol(e.protocol).severities:
            return make_stream(e.protocol, self._dataset(e, options), e.seed, **e.protocol_parameters)
        if "severity" not in datasets.describe(e.data).options:
            raise ValueError(
                f"protocol {e.protocol!r} needs severities, which data set {e.data!r} does not have"
            )
        highest = options.pop("severity", 5)
        severities = {s: self._dataset(e, {**options, "severity": s}) for s in range(1, highest + 1)}
        return make_stream(e.protocol, severities, e.seed, **e.protocol_parameters)

    def _dataset(self, e: Experiment, options: dict[str, Any]) -> Dataset:
        key = repr((e.data, e.root, plain(options)))
        if key not in self._datasets:
            self._datasets[key] = datasets.load(e.data, e.root, **options)
        return self._datasets[key]


def describe_run(run: MethodRun) -> list[str]:
    """What a reader of the result must know, a line each."""
    e, classifier = run.experiment, provenance.classifier_block(run.classifier)
    steps = classifier["preprocess"]
    height, width = steps["size"]
    options = ", ".join(f"{name}={value}" for name, value in e.identity()["data_options"].items())
    parameters = ", ".join(f"{name}={value}" for name, value in e.identity()["parameters"].items())
    random = " (random weights: its accuracies mean nothing)" if e.model.startswith("random:") else ""
    return [
        f"model      {e.model}{random}, weights {classifier['weights'][:19]}, {e.dtype} on {e.device}",
        f"pictures   {width}x{height} pixels, {steps['interpolation']}, {steps['resize_mode']}",
        f"templates  {e.templates}: {len(classifier['templates'])}, first {classifier['templates'][0]!r}",
        f"data       {e.data}{f' ({options})' if options else ''}, {classifier['classes']} classes",
        f"stream     {e.protocol}, seed {e.seed}, {len(run.stream):,} images in batches of {e.batch}; "
        f"resets: {provenance.reset_policy(run.stream)}",
        f"method     {e.method}, predicts with {run.method.info.predicts_with}; "
        f"{parameters or 'defaults'} (preset {e.preset or 'none'})",
    ]
