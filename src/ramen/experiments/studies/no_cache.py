"""What the cache of gradients saves: the same update from the images of the support set, computed again.

For some queries of a stream, the gradients that Ramen takes from its memory are computed again, from the
images and the pretrained weights. Both must give the same step; what differs is the time.
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
from ramen.experiments.studies.study_result import (
    ReportProgress,
    duration,
    no_progress,
    number,
    study,
    text_table,
)
from ramen.experiments.tables.table import Table
from ramen.memory.memory import Memory
from ramen.methods._base import Support
from ramen.methods._losses import entropy
from ramen.methods._registry import create
from ramen.methods._steps import sign_step
from ramen.methods.ramen import Ramen
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.numerics import plain_numerics

NAME = "no-cache"
_TIMED_BATCHES = 5  # the last ones, when the memory is fullest
# How far the two gradients may lie apart, as a share of their length: what rounding explains, and no more.
_ROUNDING = {torch.float64: 2e-3, torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.1}
_FAITHFUL_CODECS = ("fp32", "fp16")  # others lose more than rounding, on purpose


@dataclass(frozen=True)
class Query:
    """One image, answered with cached gradients and with gradients computed again."""

    position: int  # in the stream
    support: int  # entries
    seconds: float  # to compute their gradients again
    relative_difference: float  # length of the gradients' difference, as a share of the gradient's length
    largest_difference: float  # of one coordinate, as a share of the largest coordinate
    differing_signs: float  # share of coordinates that step another way
    largest_differing: float  # the largest coordinate that does, as a share of the largest of all
    logit_difference: float  # largest, of the answers
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
    advance: ReportProgress = no_progress,
) -> dict[str, Any]:
    """Ramen with and without its cache on a slice of a stream, and the time that the whole stream would take.

    Args:
        classifier: What is adapted.
        stream: Its images are answered in order, ``batch`` at a time.
        parameters: Of Ramen.
        queries: How many images are answered without the cache, too.
        after: How many images fill the memory first (whole batches).
        batch: Images in a batch, also of the gradients that are computed again.
        seed: Of Ramen.
        advance: Called with what is going on, how much of it is done, and how much there is.
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
    found = replay.run(queries, after, advance)
    if not found:
        raise ValueError("none of the queries could be compared: their images or gradients are not finite")
    data = _summary(method, stream, replay, found)
    _check(method, data)
    title = f"Ramen without its cache, {len(found)} queries of {stream.dataset.name}"
    return study(NAME, title, [_time_table(data), _equality_table(data)], data)


class _Replay:
    """A method on its way through a stream, with the time of every batch."""

    def __init__(self, method: Ramen, stream: Stream, batch: int) -> None:
        self.method, self.stream, self.batch = method, stream, batch
        self.times: list[tuple[float, int]] = []  # seconds and images of each batch
        self.fresh_from = 0  # where the method was last reset: its numbers count from there

    def run(self, queries: int, after: int, advance: ReportProgress) -> list[Query]:
        found: list[Query] = []
        asked = 0
        for part in self.stream.batches(self.batch):
            images = self._read(part)
            if part.start in self.stream.resets:
                self.method.reset()
                self.fresh_from = part.start
            if part.start < after:
                self._predict(images, None)
                advance("filling the memory", min(part.stop, after), after)
                continue
            gradients: list[Tensor] = []
            support = self._predict(images, gradients)
            assert support is not None
            for index in range(min(len(images), queries - asked)):
                if support.valid[index].any() and gradients[0][index].isfinite().all():
                    found.append(self._compare(images[index], support, index, gradients[0], part.start))
                asked += 1
                advance("computing gradients again", asked, queries)
            if asked == queries:
                break
        return found

    def _read(self, part: slice) -> Tensor:
        classifier = self.method.classifier
        return classifier.preprocess(self.stream.read(part)).to(classifier.device)

    def _predict(self, images: Tensor, gradients: list[Tensor] | None) -> Support | None:
        """Answer a batch and note the time; ``gradients`` takes what the method summed from its memory."""
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
        spent = seconds(
            lambda: again.append(recomputed_gradient(classifier, images, weights, self.batch)),
            classifier.device,
        )
        rows = torch.stack([cached[index].to(again[0]), again[0]])
        with torch.no_grad():
            steps = sign_step(classifier.encoder.base, rows, method.lr)
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
    classifier: ZeroShotClassifier, images: Tensor, weights: Tensor, batch: int
) -> Tensor:
    """The gradient ``(G,)`` of the weighted sum of the images' entropies at the pretrained weights."""
    base = classifier.encoder.base
    total = torch.zeros_like(base)
    for part, weight in zip(images.split(batch), weights.split(batch), strict=True):
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
    """Keep what ``memory.aggregate`` returns: the very gradients that the method steps along."""
    original: Callable[..., Tensor] = memory.aggregate

    def aggregate(*arguments: Any, **named: Any) -> Tensor:
        into.append(original(*arguments, **named))
        return into[-1]

    memory.aggregate = aggregate  # type: ignore[method-assign]
    try:
        yield
    finally:
        del memory.aggregate


# -- what is told of it -----------------------------------------------------------------------------


def _summary(method: Ramen, stream: Stream, replay: _Replay, found: Sequence[Query]) -> dict[str, Any]:
    timed = replay.times[1:][-_TIMED_BATCHES:] or replay.times  # the first call also prepares things
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


def _time_table(data: dict[str, Any]) -> Table:
    spent, whole = data["seconds"], data["whole_stream"]
    kinds = {
        "cached": ("with the cache", 1),
        "recomputed": (f"without, {data['support']:,.0f} entries as here", data["ratio"]),
        "recomputed_full": (f"without, {data['full_support']:,} entries, the most", data["ratio_full"]),
    }
    if data["support"] == data["full_support"]:
        del kinds["recomputed_full"]
    rows = [
        [title, duration(spent[kind]), duration(whole[kind]), number(ratio, 0)]
        for kind, (title, ratio) in kinds.items()
    ]
    printed = data["paper"]
    for kind, title in (("cached", "paper, with the cache"), ("recomputed", "paper, without")):
        seconds_in_all = printed[kind]
        query = duration(seconds_in_all / paper.reported_times()["ramen"].images)
        rows.append([title, query, duration(seconds_in_all), number(seconds_in_all / printed["cached"], 0)])
    return text_table(
        "Time",
        ["", "a query", f"{data['images']:,} images", "ratio"],
        rows,
        f"Measured on {len(data['queries'])} queries after {data['seen_before']:,} images in batches of "
        f"{data['batch']}, extrapolated to the whole stream, without reading images. Without the cache a "
        "query costs what it costs with it and the gradients of its support besides.",
        "The paper's: 150,000 images of CIFAR-100-C, ViT-B/16, 500 entries, one V100.",
    )


def _equality_table(data: dict[str, Any]) -> Table:
    worst = data["worst"]
    rows = [
        ["gradients: length of the difference", f"{worst['relative_difference']:.2e} of the gradient's"],
        ["gradients: largest difference", f"{worst['largest_difference']:.2e} of the largest coordinate"],
        ["steps: coordinates that differ", f"{100 * worst['differing_signs']:.3f} %"],
        ["steps: largest coordinate that differs", f"{worst['largest_differing']:.2e} of the largest"],
        ["answers: largest difference of a logit", f"{worst['logit_difference']:.2e}"],
        ["answers: same label", f"{data['same_labels']} of {len(data['queries'])}"],
    ]
    return text_table("Cached against recomputed", ["", "worst query"], rows)
