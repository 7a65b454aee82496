"""Settings chosen without labels: by what they answer to the first images of the stream that they are for."""

import copy
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.experiments import provenance
from ramen.experiments.experiment import Experiment
from ramen.experiments.run import Loaded
from ramen.experiments.store import read_result, write_result
from ramen.experiments.tune import Search
from ramen.kernels.graphs import Recorder
from ramen.methods._losses import information
from ramen.methods._registry import create
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.utils.workers import available_cores, process_pool


def try_settings(
    search: Search, store: Path, *, jobs: int | None = None, say: Callable[[str], object] = lambda text: None
) -> list[dict[str, Any]]:
    """What each experiment of a search answers, in the search's order.

    Args:
        search: With a number of images.
        store: Trials that its folder has are not made again.
        jobs: Processes, 0 for one per core; None for this one.
        say: Called with a line on each trial.
    """
    assert search.images is not None
    folder = store / "tuning" / ".unlabelled"
    paths = {
        run.key(): folder / f"{run.method}-{run.key()}-{search.images}.json" for run in search.experiments
    }
    found = {key: read_result(path) for key, path in paths.items() if path.exists()}
    left = list({run.key(): run for run in search.experiments if run.key() not in found}.values())
    with ExitStack() as stack:
        if jobs is not None:
            pool = stack.enter_context(process_pool(jobs or available_cores()))
            tried = pool.map(partial(_trial, search.images), left)
        else:
            tried = map(partial(_trial, search.images), left)
        for run, trial in zip(left, tried, strict=True):
            found[run.key()] = trial
            if trial["kind"] == "trial":  # a method that is skipped leaves no file
                write_result(paths[run.key()], trial)
                say(f"{run.method}: information {trial['information']:.3f}, movement {trial['movement']:.2f}")
            else:
                say(f"{run.method} is skipped: {trial['reason']}")
    return [found[run.key()] for run in search.experiments]


_loaded = cache(Loaded)  # what the trials of a process share


def _trial(images: int, experiment: Experiment) -> dict[str, Any]:
    """The information of a setting's answers to the first images, and how far it moves their embeddings."""
    experiment.load_method()
    stream = _loaded().stream(experiment)
    classifier = _loaded().classifier(experiment, stream.dataset.classes)
    watched = Watch(classifier)
    try:
        method = create(experiment.method, watched.classifier, seed=experiment.seed, **experiment.parameters)
    except MissingPartError as error:
        return {"kind": "skipped", "experiment": experiment.identity(), "reason": str(error)}
    answers, before, moved = [], [], []
    started, start = provenance.now(), time.perf_counter()
    for batch in stream.batches(experiment.batch):
        if batch.start >= images:
            break
        if batch.start in stream.resets:
            method.reset()
        pixels = classifier.preprocess(stream.read(slice(batch.start, min(batch.stop, images))))
        watched.embeddings.clear()
        answer = method.predict(pixels)
        answers.append(answer.logits.cpu())
        moved.append(watched.movement(pixels, answer.logits).cpu())
        before.append(answer.zero_shot_logits.cpu())
    forwards, backwards = method.passes()
    logits = torch.cat(answers)
    return {
        "kind": "trial",
        "experiment": experiment.identity(),
        "information": float(information(logits)),
        "zero_shot_information": float(information(torch.cat(before))),
        "movement": float(torch.cat(moved).median()),
        "cost": {
            "images": len(logits),
            "seconds": {"predict": time.perf_counter() - start},
            "passes": {"forward": forwards, "backward": backwards},
        },
        "provenance": provenance.block(classifier, stream, experiment.root, started),
    }


class Watch:
    """A classifier that remembers the embeddings of its passes.

    Args:
        classifier: Stays as it is.

    Attributes:
        classifier: A copy of it, whose passes are remembered and not recorded as CUDA graphs.
        embeddings: Of all passes since the list was emptied.
    """

    def __init__(self, classifier: ZeroShotClassifier) -> None:
        self.classifier, self._plain = copy.copy(classifier), classifier
        self.embeddings: list[Tensor] = []
        vars(self.classifier).update(encode=self._encode, recorder=lambda: Recorder(enabled=False))

    def _encode(self, *given: Any, **options: Any) -> Tensor:
        embeddings = self._plain.encode(*given, **options)
        self.embeddings.append(embeddings.detach())
        return embeddings

    @torch.no_grad()
    def movement(self, images: Tensor, logits: Tensor) -> Tensor:
        """How far the embeddings behind an answer are from zero-shot ones, per image; 0 if they are these.

        Args:
            images: Those of the answer.
            logits: The answer. A method may pass images several times, and change them: the embeddings of
                the pass that answers most alike are the ones that count.
        """
        own, answer = self._plain.encode(images), logits.softmax(1)
        passes = [F.normalize(one, dim=1) for one in self.embeddings if one.shape == own.shape]

        def difference(embeddings: Tensor) -> float:
            return float((self._plain.logits(embeddings).softmax(1) - answer).abs().sum(1).mean())

        nearest: Tensor = min([own, *passes], key=difference)
        return (nearest - own).square().sum(1).sqrt()
