"""One run, from its first image to its result: what is finished is read, what was interrupted resumes."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any, Literal

import torch
from torch import Tensor

import ramen.data.catalogue as datasets
from ramen.data.dataset import Dataset
from ramen.data.streams.stream import Stream, find_protocol, make_stream
from ramen.experiments import provenance
from ramen.experiments.checkpoint import Checkpoint, State
from ramen.experiments.experiment import Experiment
from ramen.experiments.group import Team
from ramen.experiments.measure import PeakMemory, Stopwatch, wait_for
from ramen.experiments.outcome import Outcome
from ramen.experiments.store import Claim, Progress, Store
from ramen.experiments.tune import check_stream
from ramen.experiments.values import plain
from ramen.methods._passes import Prediction
from ramen.methods._registry import create
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.models.names import load_model
from ramen.models.prefetch import prefetch_reads
from ramen.utils.distributed import PeerFailedError, ReportedElsewhereError
from ramen.utils.signals import StoppedError, stop_on_signals

Record = dict[str, Any]  # a result in plain values, or why there is none
Missing = Literal["raise", "skip"]  # what to do about a method that needs what the model does not have

CHECKPOINT_SECONDS = 120.0  # between two checkpoints
_METHOD, _OUTCOME = "method.", "outcome."  # in front of the names of tensors in a checkpoint
_FACTS = ("done", "batches", "refused", "first_batch", "started", "resumed")  # of a run, in a checkpoint
_MOST_THREADS = 8


class Watch:
    """What hears of a run. This one does not listen."""

    def say(self, text: str) -> None:
        """Something that the user must know; settings that runs share come with each of them."""

    def show(self, name: str, progress: Progress) -> None:
        """How far it is."""


def run(
    experiment: Experiment,
    store: Store,
    loaded: "Loaded",
    *,
    watch: Watch | None = None,
    seconds: float = CHECKPOINT_SECONDS,
    on_missing: Missing = "raise",
    owner: str | None = None,
    team: Team | None = None,
) -> Record:
    """The result, from its file or from a run, which writes it.

    Args:
        experiment: What to run.
        store: The folder of results.
        loaded: What runs share.
        watch: What hears of it.
        seconds: How often it is saved, in addition to each reset of its method.
        on_missing: What to do about a method that needs what the model does not have: raise, or return
            ``{"kind": "skipped", "experiment": ..., "reason": ...}``, without a file.
        owner: As ``Store.claim`` takes it.
        team: The processes that run it together, and all call this.
    """
    watch, team = watch or Watch(), team or Team()
    experiment.load_method()

    def finished() -> Record | None:
        return store.result(experiment, loaded.stream)

    if (found := team.first(finished)) is not None:
        return found
    try:
        with ExitStack() as stack:
            claims: list[Claim] = []  # of the first process
            team.first(lambda: claims.append(stack.enter_context(store.claim(experiment, owner))))
            if (found := team.first(finished)) is not None:  # by another process, a moment ago
                return found

            def report(progress: Progress) -> None:
                for claim in claims:
                    claim.report(progress)
                watch.show(experiment.name, progress)

            one = team.attempt(lambda: _started(experiment, loaded, team, report), "preparing a run")
            if isinstance(one, MissingPartError):
                raise one
            for line in one.settings():
                watch.say(line)
            checkpoint = Checkpoint(store.checkpoint(experiment), one.identity(), seconds, watch.say)
            one = _resumed(one, checkpoint, watch)
            try:
                one.go(checkpoint, report)
            except KeyboardInterrupt:
                if one.done:
                    watch.say(
                        f"Stopped after {one.done:,} of {len(one.stream):,} images. The same command resumes."
                    )
                raise
            result = one.result()
            team.first(lambda: store.write(experiment, result, one.outcome.answers()))
            if team.leads:
                checkpoint.remove()
            return result
    except MissingPartError as error:
        if on_missing == "raise":
            if team.leads:
                raise
            raise ReportedElsewhereError(str(error)) from error
        watch.say(f"{experiment.method} is skipped: {error}")
        return {"kind": "skipped", "experiment": experiment.identity(), "reason": str(error)}


def _started(
    experiment: Experiment, loaded: "Loaded", team: Team, report: Callable[[Progress], object]
) -> "Run | MissingPartError":
    try:
        stream = loaded.stream(experiment)
        classifier = loaded.classifier(experiment, stream.dataset.classes)
        draw_stream(stream, report)
        return Run(experiment, classifier, stream, team)
    except MissingPartError as error:  # the same in all processes
        return error


def draw_stream(stream: Stream, report: Callable[[Progress], object]) -> None:
    """Draw what is drawn when needed: now, or whoever reads first would pay for all others."""
    total, done = stream.waiting, 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        report(Progress(done, total, "drawing"))

    if total:
        stream.prepare(advance)


def _resumed(one: "Run", checkpoint: Checkpoint, watch: Watch) -> "Run":
    """The run as of its checkpoint, if there is one."""
    team = one.team
    if not team.first(lambda: checkpoint.load() is not None):
        return one

    def restore() -> None:
        saved = checkpoint.load()
        if saved is None:
            raise ValueError("not every process sees it")
        one.restore(*saved)

    unusable = (ValueError, KeyError, TypeError, StopIteration, PeerFailedError, ReportedElsewhereError)
    try:
        team.attempt(restore, "resuming a run")
    except unusable as error:
        if team.leads:
            checkpoint.set_aside(str(error))
        return Run(one.experiment, one.classifier, one.stream, team)  # the other may be half restored
    watch.say(f"{one.experiment.method}, seed {one.experiment.seed}: resuming after {one.done:,} images.")
    return one


class Run:
    """A method on a stream.

    Args:
        experiment: The settings.
        classifier: What the method adapts.
        stream: The images.
        team: Processes that share the run: each answers its part of every batch, and gets all answers.
    """

    def __init__(
        self,
        experiment: Experiment,
        classifier: ZeroShotClassifier,
        stream: Stream,
        team: Team | None = None,
    ) -> None:
        self.team = team or Team()
        if experiment.window is not None and self.team.group is not None:
            raise ValueError(f"window must be None in a group of processes, got {experiment.window}")
        if experiment.tuned is not None:
            domains = [stream.dataset.domains[number].name for number in sorted(set(stream.domain.tolist()))]
            check_stream(experiment, domains)
        self.experiment, self.classifier, self.stream = experiment, classifier, stream
        self.method = create(
            experiment.method,
            classifier,
            seed=experiment.seed,
            group=self.team.group,
            **experiment.parameters,
        )
        self.outcome = Outcome(stream, self.method.retrieves)
        self.clock, self.memory = Stopwatch(), PeakMemory(classifier.device)
        self.done = self.batches = self.resumed = 0
        self.first_batch: float | None = None
        self.started = provenance.now()
        self.refused = 0  # images that were answered zero-shot because something about them was not finite
        size = experiment.window
        self._window = None if size is None else SlidingWindow(size, stream, classifier)

    def go(
        self,
        checkpoint: Checkpoint | None = None,
        report: Callable[[Progress], object] = lambda progress: None,
        observe: Callable[[slice, Prediction], object] = lambda batch, prediction: None,
    ) -> None:
        """Process the rest of the stream; Ctrl-C and SIGTERM end it after a batch and a checkpoint.

        Args:
            checkpoint: Where to save the run on its way.
            report: Called after each batch.
            observe: Called with each batch and the method's answer.
        """
        self.stream.prepare()
        left = [batch for batch in self.stream.batches(self.experiment.batch) if batch.start >= self.done]
        # ahead of time, unless that would take the cores that compute
        threads = 0 if self.classifier.device.type == "cpu" else min(_MOST_THREADS, os.cpu_count() or 1)
        prepared = prefetch_reads(
            map(self.team.readable, left),
            self.stream.read,
            self.classifier,
            threads=threads,
            stage=self.clock.stage,
        )
        first, start = self.done, time.perf_counter()
        with stop_on_signals(lambda: None) as request, closing(prepared):
            for batch, images in zip(left, prepared, strict=True):
                observe(batch, self.step(batch, images))
                report(self._progress((self.done - first) / (time.perf_counter() - start)))
                stop = self.team.any(request.requested)
                if checkpoint is not None and self._should_save(checkpoint, stop) and self.team.leads:
                    checkpoint.save(self.state)
                if stop:
                    raise StoppedError(request.exit_code) if request.requested else KeyboardInterrupt

    def step(self, batch: slice, images: Tensor) -> Prediction:
        """The answer to a batch, of this process's part of its images."""
        if batch.start in self.stream.resets:
            self.method.reset()
        device, own = self.classifier.device, self.team.part(batch)
        with self.clock.stage("preprocess"):
            images = images.to(device)[: own.stop - own.start]
            if self._window is not None:
                images, own = self._window.extended(batch, images), self._window.positions(batch)
        start = time.perf_counter()
        with self.clock.stage("predict"):
            answer = self.method.predict(
                images, tags=self.outcome.domains[own], return_support=self.method.retrieves
            )
            wait_for(device)
        if self.first_batch is None:
            self.first_batch = time.perf_counter() - start
        with self.clock.stage("zero_shot"):
            _ = answer.zero_shot_logits  # computed now, unless the method needed it
            wait_for(device)
        with self.clock.stage("score"):
            answer = self.team.whole(batch, answer)
            if self._window is not None:
                answer = answer.of(slice(batch.start - own.start, None))
            self.outcome.add(batch, answer)
            self.refused += int(answer.fallback.sum())
        self.done = batch.stop
        self.batches += 1
        return answer

    def _progress(self, rate: float) -> Progress:
        return Progress(self.done, len(self.stream), "", rate, *self.outcome.accuracies(self.done))

    def _should_save(self, checkpoint: Checkpoint, interrupted: bool) -> bool:
        if self.done == len(self.stream):
            return False
        return self._between_parts or interrupted or self.team.any(checkpoint.due())

    @property
    def _between_parts(self) -> bool:
        return self.done in self.stream.resets

    # -- checkpoints ------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """What must be equal for the run to resume from a checkpoint."""
        return {
            "experiment": {**self.experiment.identity(), "parameters": self.experiment.all_parameters()},
            "stream": self.stream.identity()["order"],
            "dataset": provenance.dataset_block(self.stream.dataset, None),
            "classifier": provenance.classifier_block(self.classifier),
            "version": provenance.versions()["ramen"],
        }

    def state(self) -> State:
        """All that is needed to resume from here; of a group, the first process's is enough for all."""
        facts = {
            **{name: getattr(self, name) for name in _FACTS},
            "seconds": self.clock.seconds,
            "peak_device_bytes": self.memory.device_bytes(),
            "peak_host_bytes": self.memory.host_bytes(),
        }
        tensors = {_OUTCOME + name: tensor for name, tensor in self.outcome.state(self.done).items()}
        if not self._between_parts:  # otherwise the method is about to be reset
            tensors |= {_METHOD + name: tensor for name, tensor in self.method.state_dict().items()}
        return facts, tensors

    def restore(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Resume from what ``state`` returned. After an error this object must not be used."""
        parts: dict[str, dict[str, Tensor]] = {_OUTCOME: {}, _METHOD: {}}
        for name, tensor in tensors.items():
            kind = next(kind for kind in parts if name.startswith(kind))
            parts[kind][name.removeprefix(kind)] = tensor
        if parts[_METHOD]:
            self.method.load_state_dict(parts[_METHOD])
        self.outcome.restore(parts[_OUTCOME], facts["done"])
        self.clock.restore(facts["seconds"])
        self.memory.restore(facts["peak_device_bytes"], facts["peak_host_bytes"])
        for name in _FACTS:
            setattr(self, name, facts[name])
        self.resumed += 1

    # -- the result ---------------------------------------------------------------------------------------

    def result(self) -> Record:
        """The result in plain values, as it is written to disk."""
        experiment, method = self.experiment, self.method
        # of an image of the stream, which a window holds several times
        times = 1 if self._window is None else self._window.repetition(experiment.batch)
        forwards, backwards = method.passes()
        with self.clock.stage("score"):
            scores, composition = self.outcome.scores(self.refused), self.outcome.composition_block()
        return {
            "kind": "run",
            "experiment": experiment.identity(),
            "preset": experiment.preset,
            "overrides": plain(experiment.overrides),
            **({} if experiment.tuned is None else {"tuned": plain(experiment.tuned)}),
            "scores": scores,
            "composition": composition,
            "cost": {
                "seconds": dict(self.clock.seconds),
                "first_batch_seconds": self.first_batch,
                "ms_an_image": 1000 * self.clock.seconds["predict"] / len(self.stream),
                "images": len(self.stream),
                "batches": self.batches,
                "peak_device_bytes": self.memory.device_bytes(),
                "peak_host_bytes": self.memory.host_bytes(),
                "peak_host_scope": self.memory.host_scope,
                "memory_bytes": method.memory_bytes(),
                **({} if self.team.group is None else {"processes": self.team.size}),
                "passes": {"forward": forwards * times, "backward": backwards * times},
            },
            "provenance": {
                **provenance.block(self.classifier, self.stream, experiment.root, self.started),
                "method": provenance.method_block(experiment, method, self.stream),
                "resumed": self.resumed,
            },
        }

    def settings(self) -> list[str]:
        """The settings that a reader of the result must know, one line each."""
        e, classifier = self.experiment, provenance.classifier_block(self.classifier)
        steps = classifier["preprocess"]
        height, width = steps["size"]
        options = ", ".join(f"{name}={value}" for name, value in e.identity()["data_options"].items())
        parameters = ", ".join(f"{name}={value}" for name, value in e.identity()["parameters"].items())
        window = f", each at the end of a window of {e.window}" if e.window is not None else ""
        random = " (random weights: its accuracies mean nothing)" if e.model.startswith("random:") else ""
        written = classifier["templates"]
        templates = f"{e.templates}: {len(written)}, first {written[0]!r}" if written else "none"
        return [
            f"model      {e.recorded_model}{random}, weights {classifier['weights'][:19]}, "
            f"{e.dtype} on {e.device}",
            f"images     {width}x{height} pixels, {steps['interpolation']}, {steps['resize_mode']}",
            f"templates  {templates}",
            f"data       {e.data}{f' ({options})' if options else ''}, {classifier['classes']} classes",
            f"stream     {e.protocol}, seed {e.seed}, {len(self.stream):,} images in batches of {e.batch}"
            f"{window}; resets: {provenance.reset_policy(self.stream)}",
            f"method     {e.method}, predicts with {self.method.info.predicts_with}; "
            f"{parameters or 'defaults'} (preset {e.preset or 'none'}"
            f"{'' if e.tuned is None else ', tuned by search ' + e.tuned['search']})",
        ]


class SlidingWindow:
    """The images that a method gets if its batches are small: those of a batch after the ones before it.

    It never reaches across a reset, and is shorter after one until enough images have come.

    Args:
        size: Images in a full window, those of the batch included.
        stream: Where the images come from.
        classifier: Prepares them.
    """

    def __init__(self, size: int, stream: Stream, classifier: ZeroShotClassifier) -> None:
        self.size, self._stream, self._classifier = size, stream, classifier
        self._held: Tensor | None = None  # the previous window
        self._end = 0  # where it ended in the stream

    def positions(self, batch: slice) -> slice:
        """The part of the stream that the method gets, given the batch at the end of it."""
        begin = max((reset for reset in self._stream.resets if reset <= batch.start), default=0)
        return slice(max(begin, batch.stop - self.size), batch.stop)

    def repetition(self, batch: int) -> float:
        """How often the method gets an image, on average over the stream, if batches have that size."""
        windows = map(self.positions, self._stream.batches(batch))
        images: int = sum(window.stop - window.start for window in windows)
        return images / len(self._stream)

    def extended(self, batch: slice, images: Tensor) -> Tensor:
        """The images of a batch, after those that come before it in the window.

        Args:
            batch: The positions of the images, after those of the previous call, or after a gap.
            images: Preprocessed, on the classifier's device.
        """
        before = slice(self.positions(batch).start, batch.start)
        if before.start < before.stop:
            images = torch.cat([self._images(before), images])
        self._held, self._end = images, batch.stop
        return images

    def _images(self, positions: slice) -> Tensor:
        count = positions.stop - positions.start
        if self._held is not None and self._end == positions.stop and len(self._held) >= count:
            return self._held[len(self._held) - count :]
        # a run that resumes: what it had seen before is read again
        return self._classifier.preprocess(self._stream.read(positions)).to(self._classifier.device)


class Loaded:
    """Classifiers, data sets and streams; experiments that share one share its object."""

    def __init__(self) -> None:
        self._datasets: dict[str, Dataset] = {}
        self._streams: dict[str, Stream] = {}
        self._classifier: tuple[str, ZeroShotClassifier] | None = None  # only the last one: they are large

    def classifier(self, experiment: Experiment, classes: Sequence[str]) -> ZeroShotClassifier:
        """The classifier of an experiment."""
        e = experiment
        key = repr((e.recorded_model, e.templates, e.device, e.dtype, tuple(classes)))
        if self._classifier is None or self._classifier[0] != key:
            self._classifier = None  # free its memory before the next one is loaded
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
