"""One method on one stream, from the first image to the result."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.experiments.plan.experiment import Experiment
from ramen.experiments.plan.values import plain
from ramen.experiments.run import provenance
from ramen.experiments.run.checkpoint import Checkpoint
from ramen.experiments.run.group_parts import everybodys, for_all, own_part, readable_part
from ramen.experiments.run.measure import PeakMemory, Stopwatch, wait_for
from ramen.experiments.run.outcome import Outcome
from ramen.experiments.run.sliding_window import SlidingWindow
from ramen.experiments.tune.tuned_values import refuse_tuning_stream
from ramen.methods._answers import Prediction
from ramen.methods._registry import create
from ramen.models.classifier import ZeroShotClassifier
from ramen.models.prefetch import prefetch_reads
from ramen.utils.peers import Group

_METHOD, _OUTCOME = "method.", "outcome."
_MOST_THREADS = 8


class MethodRun:
    """A method's run over a stream.

    Args:
        experiment: The settings.
        classifier: What the method adapts.
        stream: The images.
        group: Processes that share the run: each answers its part of every batch, and gets all answers.
    """

    def __init__(
        self,
        experiment: Experiment,
        classifier: ZeroShotClassifier,
        stream: Stream,
        group: Group = None,
    ) -> None:
        if experiment.window is not None and group is not None:
            raise ValueError(f"window must be None in a group of processes, got {experiment.window}")
        if experiment.tuned is not None:
            domains = [stream.dataset.domains[number].name for number in sorted(set(stream.domain.tolist()))]
            refuse_tuning_stream(experiment.tuned, experiment.data, stream.seed, domains)
        self.experiment, self.classifier, self.stream = experiment, classifier, stream
        self.method = create(
            experiment.method, classifier, seed=experiment.seed, group=group, **experiment.parameters
        )
        self.outcome = Outcome(stream, self.method.retrieves)
        self.clock, self.memory = Stopwatch(), PeakMemory(classifier.device)
        self.done = self.batches = self.resumed = 0
        self.first_batch: float | None = None
        self.started = provenance.now()
        self.refused = 0  # images that were answered zero-shot because something about them was not finite
        size = experiment.window
        self._window = None if size is None else SlidingWindow(size, stream, classifier)

    def identity(self) -> dict[str, Any]:
        """What must be equal for the run to resume from a checkpoint."""
        return {
            "experiment": {**self.experiment.identity(), "parameters": self.experiment.all_parameters()},
            "stream": self.stream.identity()["order"],
            "dataset": provenance.dataset_block(self.stream.dataset, None),
            "classifier": provenance.classifier_block(self.classifier),
            "version": provenance.versions()["ramen"],
        }

    def go(
        self,
        checkpoint: Checkpoint | None = None,
        progress: Callable[["MethodRun"], object] = lambda run: None,
        observe: Callable[[slice, Prediction], object] = lambda batch, prediction: None,
    ) -> None:
        """Process the rest of the stream; a KeyboardInterrupt is raised after a checkpoint.

        Args:
            checkpoint: Where to save the run on its way.
            progress: Called after each batch.
            observe: Called with each batch and the method's answer.
        """
        self.stream.prepare()  # before the clock: whoever reads first would pay for all others
        left = [b for b in self.stream.batches(self.experiment.batch) if b.start >= self.done]
        threads = _preparing_threads(self.classifier.device)
        own = [readable_part(batch, self.method.peers) for batch in left]
        prepared = prefetch_reads(
            own, self.stream.read, self.classifier, threads=threads, stage=self.clock.stage
        )
        with _interruption() as interrupted, closing(prepared):
            for batch, images in zip(left, prepared, strict=True):
                observe(batch, self._step(batch, images))
                progress(self)
                stop = for_all(self.method.peers, interrupted.is_set())
                if checkpoint is not None and self._should_save(checkpoint, stop):
                    saved = checkpoint.save(self.state, self._save_method)
                    if for_all(self.method.peers, not saved):
                        checkpoint.give_up()
                if stop:
                    raise KeyboardInterrupt

    def _should_save(self, checkpoint: Checkpoint, interrupted: bool) -> bool:
        if self.done == len(self.stream):
            return False
        if self._between_parts or interrupted:
            return True
        return for_all(self.method.peers, checkpoint.due())

    @property
    def _save_method(self) -> Callable[[Path], None] | None:
        """What writes the method's state to a folder, if no process has all of it."""
        return None if self.method.peers is None or self._between_parts else self.method.save

    @property
    def _between_parts(self) -> bool:
        return self.done in self.stream.resets

    def _step(self, batch: slice, images: Tensor) -> Prediction:
        if batch.start in self.stream.resets:
            self.method.reset()
        device, peers = self.classifier.device, self.method.peers
        own = own_part(batch, peers)
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
            answer = everybodys(answer, peers)
            if self._window is not None:
                answer = answer.of(slice(batch.start - own.start, None))
            self.outcome.add(batch, answer)
            self.refused += int(answer.fallback.sum())
        self.done = batch.stop
        self.batches += 1
        return answer

    # -- checkpoints ------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All that is needed to resume from here."""
        facts = {
            "done": self.done,
            "batches": self.batches,
            "refused": self.refused,
            "seconds": self.clock.seconds,
            "first_batch": self.first_batch,
            "peak_device_bytes": self.memory.device_bytes(),
            "peak_host_bytes": self.memory.host_bytes(),
            "started": self.started,
            "resumed": self.resumed,
        }
        tensors = {_OUTCOME + name: tensor for name, tensor in self.outcome.state(self.done).items()}
        if not self._between_parts and self.method.peers is None:
            # between parts the method is about to be reset; in a group, it has a folder of its own
            tensors |= {_METHOD + name: tensor for name, tensor in self.method.state_dict().items()}
        return facts, tensors

    def restore(self, facts: dict[str, Any], tensors: dict[str, Tensor], folder: Path | None = None) -> None:
        """Resume from what ``state`` returned. After an error this object must not be used.

        Args:
            facts: They.
            tensors: Likewise.
            folder: The method's state, if it was saved by a group.
        """
        parts: dict[str, dict[str, Tensor]] = {_OUTCOME: {}, _METHOD: {}}
        for name, tensor in tensors.items():
            kind = next(kind for kind in parts if name.startswith(kind))
            parts[kind][name.removeprefix(kind)] = tensor
        if parts[_METHOD]:
            self.method.load_state_dict(parts[_METHOD])
        if folder is not None:
            self.method.load(folder)
        self.outcome.restore(parts[_OUTCOME], facts["done"])
        self.clock.restore(facts["seconds"])
        self.memory.restore(facts["peak_device_bytes"], facts["peak_host_bytes"])
        self.done, self.batches = facts["done"], facts["batches"]
        self.first_batch, self.started = facts["first_batch"], facts["started"]
        self.refused, self.resumed = facts["refused"], facts["resumed"] + 1

    # -- the result ---------------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        """The result in plain values, as it is written to disk."""
        experiment, method = self.experiment, self.method
        forwards, backwards = self._passes()
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
                **({} if method.peers is None else {"processes": method.peers.size}),
                "passes": {"forward": forwards, "backward": backwards},
            },
            "provenance": {
                "classifier": provenance.classifier_block(self.classifier),
                "stream": plain(self.stream.identity()),
                "dataset": provenance.dataset_block(self.stream.dataset, experiment.root),
                "method": provenance.method_block(experiment, method, self.stream),
                "versions": provenance.versions(),
                "hardware": provenance.hardware(self.classifier.device),
                "commit": provenance.commit(),
                "started": self.started,
                "finished": provenance.now(),
                "resumed": self.resumed,
            },
        }

    def _passes(self) -> tuple[float, float]:
        """Forward and backward passes per image of the stream, which a window holds several times."""
        forwards, backwards = self.method.passes()
        times = 1 if self._window is None else self._window.repetition(self.experiment.batch)
        return forwards * times, backwards * times


def _preparing_threads(device: torch.device) -> int:
    """How many threads prepare batches: none if that would take the cores that compute."""
    return 0 if device.type == "cpu" else min(_MOST_THREADS, os.cpu_count() or 1)


@contextmanager
def _interruption() -> Iterator[threading.Event]:
    """Ctrl-C sets the event, so that the batch is finished first; a second Ctrl-C interrupts immediately."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # signals reach only the main thread
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
