"""What the gradient cache saves: the same update, recomputed from the images of the support set.

For some queries of a stream, the gradients that Ramen reads from its memory are recomputed from the images
and the pretrained weights. Both must give the same step; only the time differs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.experiments.analysis import paper
from ramen.experiments.run.measure import seconds
from ramen.experiments.studies.no_cache_tables import equality_table, time_table
from ramen.experiments.studies.study_result import ReportProgress, no_progress, study
from ramen.memory.retrieval import Memory
from ramen.methods._answers import Support
from ramen.methods._registry import create
from ramen.methods._steps import entropy, sample_gradients, sign_step, unit_rows
from ramen.methods.ramen import Ramen
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.numerics import plain_numerics

NAME = "no-cache"
_TIMED_BATCHES = 5  # the last batches, when the memory is fullest
# The largest difference of the two gradients that rounding explains, relative to their norm.
_ROUNDING = {torch.float64: 2e-3, torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.1}
_FAITHFUL_CODECS = ("fp32", "fp16")  # other codecs lose more than rounding, by design


@dataclass(frozen=True)
class Query:
    """One image, answered with cached and with recomputed gradients."""

    position: int  # in the stream
    support: int  # entries
    seconds: float  # to recompute their gradients
    relative_difference: float  # norm of the difference, relative to the gradient's norm
    largest_difference: float  # of one coordinate, relative to the largest coordinate
    differing_signs: float  # share of coordinates with another step
    largest_differing: float  # the largest such coordinate, relative to the largest of all
    logit_difference: float  # largest difference of a logit
    same_label: bool


def no_cache_study(
    classifier: ZeroShotClassifier,
    stream: Stream,
    parameters: Mapping[str, Any] | None = None,
    *,
    queries: int = 10,
    after: int = 1000,
    batch: int = 100,
    seed: int = 0,
    progress: ReportProgress = no_progress,
) -> dict[str, Any]:
    """Ramen with and without its cache on a part of a stream, and the estimated time of the whole stream.

    Args:
        classifier: What is adapted.
        stream: Its images are answered in order, ``batch`` at a time.
        parameters: Ramen's parameters.
        queries: How many images are also answered without the cache.
        after: How many images fill the memory first (whole batches).
        batch: Images per batch, also when gradients are recomputed.
        seed: Ramen's seed.
        progress: Called with the step's name, how much of it is done, and how much there is.
    """
    checks.integer("queries", queries, 1)
    checks.integer("after", after, 0)
    if after + queries > len(stream):
        raise ValueError(
            f"after + queries must be at most the stream's {len(stream)} images, got {after} + {queries}"
        )
    method = create("ramen", classifier, seed=seed, **(parameters or {}))
    assert isinstance(method, Ramen)
    replay = _Replay(method, stream, batch)
    found = replay.run(queries, after, progress)
    if not found:
        raise ValueError("no query could be compared: their images or gradients are not finite")
    data = _summary(method, stream, replay, found)
    _check(method, data)
    title = f"Ramen without its cache, {len(found)} queries of {stream.dataset.name}"
    return study(NAME, title, [time_table(data), equality_table(data)], data)


class _Replay:
    """Runs a method over a stream and records the time of every batch."""

    def __init__(self, method: Ramen, stream: Stream, batch: int) -> None:
        self.method, self.stream, self.batch = method, stream, batch
        self.times: list[tuple[float, int]] = []  # seconds and images of each batch
        self.fresh_from = 0  # position of the last reset: entry numbers count from there

    def run(self, queries: int, after: int, progress: ReportProgress) -> list[Query]:
        found: list[Query] = []
        asked = 0
        for part in self.stream.batches(self.batch):
            images = self._read(part)
            if part.start in self.stream.resets:
                self.method.reset()
                self.fresh_from = part.start
            if part.start < after:
                self._predict(images, None)
                progress("filling the memory", min(part.stop, after), after)
                continue
            gradients: list[Tensor] = []
            support = self._predict(images, gradients)
            assert support is not None
            for index in range(min(len(images), queries - asked)):
                if support.valid[index].any() and gradients[0][index].isfinite().all():
                    found.append(self._compare(images[index], support, index, gradients[0], part.start))
                asked += 1
                progress("recomputing gradients", asked, queries)
            if asked == queries:
                break
        return found

    def _read(self, part: slice) -> Tensor:
        classifier = self.method.classifier
        return classifier.preprocess(self.stream.read(part)).to(classifier.device)

    def _predict(self, images: Tensor, gradients: list[Tensor] | None) -> Support | None:
        """Answer a batch and record its time; ``gradients`` receives the sums from the memory."""
        support: list[Support | None] = []

        def answer() -> None:
            prediction = self.method.predict(images, return_support=gradients is not None)
            support.append(prediction.support)

        with _recorded_sums(self.method.memory, [] if gradients is None else gradients):
            self.times.append((seconds(answer, self.method.classifier.device), len(images)))
        return support[0]

    @plain_numerics()
    def _compare(self, image: Tensor, support: Support, index: int, cached: Tensor, start: int) -> Query:
        classifier, method = self.method.classifier, self.method
        chosen = support.valid[index]
        positions = (support.numbers[index][chosen] + self.fresh_from).tolist()
        images = torch.cat([self._read(slice(position, position + 1)) for position in positions])
        weights = support.weights[index][chosen].to(classifier.device)
        again: list[Tensor] = []

        def recompute() -> None:
            unit = method.unit_gradients
            again.append(recomputed_gradient(classifier, images, weights, self.batch, unit=unit))

        spent = seconds(recompute, classifier.device)
        rows = torch.stack([cached[index].to(again[0]), again[0]])
        with torch.no_grad():
            steps = sign_step(classifier.encoder.base, rows, float(method.lr))
            logits = classifier.logits(classifier.encode(image.expand(2, -1, -1, -1), steps))
        return Query(
            position=start + index,
            support=len(positions),
            seconds=spent,
            logit_difference=float((logits[0] - logits[1]).abs().max()),
            same_label=bool(logits[0].argmax() == logits[1].argmax()),
            **_differences(rows, steps),
        )


def recomputed_gradient(
    classifier: ZeroShotClassifier, images: Tensor, weights: Tensor, batch: int, *, unit: bool = False
) -> Tensor:
    """The weighted sum ``(G,)`` of the gradients of the images' entropies, each at ``unit`` length if so."""
    base = classifier.encoder.base
    total = torch.zeros_like(base)
    for part, weight in zip(images.split(batch), weights.split(batch), strict=True):
        if unit:
            with torch.no_grad():
                total += weight @ unit_rows(sample_gradients(classifier, part)[3])
            continue
        with torch.enable_grad():
            affine = base.detach().requires_grad_()
            entropies = entropy(classifier.logits(classifier.encode(part, affine)))
            total += classifier.gradient((weight * entropies).sum(), affine)
    return total


def _differences(gradients: Tensor, steps: Tensor) -> dict[str, float]:
    cached, again = gradients.double()
    difference, largest = (cached - again).abs(), float(again.abs().max())
    differing = steps[0] != steps[1]
    return {
        "relative_difference": float(difference.norm() / again.norm()),
        "largest_difference": float(difference.max()) / largest,
        "differing_signs": float(differing.double().mean()),
        "largest_differing": float(torch.where(differing, again.abs(), 0).max()) / largest,
    }


@contextmanager
def _recorded_sums(memory: Memory, into: list[Tensor]) -> Iterator[None]:
    """Record what ``memory.aggregate`` returns: the gradients that the method steps along."""
    original: Callable[..., Tensor] = memory.aggregate

    def aggregate(*arguments: Any, **named: Any) -> Tensor:
        into.append(original(*arguments, **named))
        return into[-1]

    memory.aggregate = aggregate  # type: ignore[method-assign]
    try:
        yield
    finally:
        del memory.aggregate


# -- the result -------------------------------------------------------------------------------------


def _summary(method: Ramen, stream: Stream, replay: _Replay, found: Sequence[Query]) -> dict[str, Any]:
    timed = replay.times[1:][-_TIMED_BATCHES:] or replay.times  # the first call includes preparation
    cached = sum(t for t, _ in timed) / sum(n for _, n in timed)
    support = float(np.mean([query.support for query in found]))
    entry = sum(query.seconds for query in found) / sum(query.support for query in found)
    full = method.classifier.num_classes * method.topk
    printed = paper.reported_times()
    without = {"measured": cached + entry * support, "full": cached + entry * full}
    return {
        "images": len(stream),
        "batch": replay.batch,
        "seen_before": found[0].position,
        "parameters": {name: getattr(method, name) for name in ("capacity", "topk", "beta", "lr", "codec")},
        "support": support,
        "full_support": full,
        "seconds": {"cached": cached, "recomputed": without["measured"], "recomputed_full": without["full"]},
        "seconds_an_entry": entry,
        "whole_stream": {
            "cached": cached * len(stream),
            "recomputed": without["measured"] * len(stream),
            "recomputed_full": without["full"] * len(stream),
        },
        "ratio": without["measured"] / cached,
        "ratio_full": without["full"] / cached,
        "queries": [{**vars(query)} for query in found],
        "worst": {
            name: max(getattr(query, name) for query in found)
            for name in (
                "relative_difference",
                "largest_difference",
                "differing_signs",
                "largest_differing",
                "logit_difference",
            )
        },
        "same_labels": sum(query.same_label for query in found),
        "paper": {"cached": printed["ramen"].seconds, "recomputed": printed[paper.WITHOUT_CACHE].seconds},
    }


def _check(method: Ramen, data: dict[str, Any]) -> None:
    worst, allowed = data["worst"]["relative_difference"], _ROUNDING[method.classifier.dtype]
    if method.codec in _FAITHFUL_CODECS and not (math.isfinite(worst) and worst <= allowed):
        raise RuntimeError(
            f"cached and recomputed gradients differ by {worst:.3g} of their length, more than rounding "
            f"explains ({allowed:g}): the cache is wrong"
        )
