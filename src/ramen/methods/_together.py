"""One step of several streams: their images share the passes, each method keeps to its own memory."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.affine_encoder import AffineEncoder
from ramen.methods._answers import Answer, Prediction, Support
from ramen.methods._base import Method
from ramen.methods._pass_sharing import EmbeddingMethod, FirstPass, GradientMethod, OwnStep
from ramen.methods._shared_passes import SharedBatch, recordings_of
from ramen.utils import checks
from ramen.utils.numerics import plain_numerics

_Value = TypeVar("_Value")


def predict_together(
    parts: Sequence[tuple[Method, Tensor]],
    *,
    return_support: bool = False,
    batch_sizes: Sequence[int] = (),
    invariant: bool = False,
) -> list[Prediction | Exception]:
    """Answer images of several streams, as ``method.predict`` does for each, but with shared passes.

    A method that cannot share passes is asked by itself.

    Args:
        parts: Methods, each of them once, and their images. Their classifiers have the same encoder; their
            classes may differ.
        return_support: Also return which entries were used, for methods that retrieve some.
        batch_sizes: The sizes of batches that go through the encoder: blank images fill up the smallest one
            that is large enough, and more images than the largest are cut up. If not given, all images go
            together as they are. Few sizes mean few CUDA graphs.
        invariant: No answer depends on what else is in the batch, to the last bit, as far as the device's
            matrix products treat all rows of a batch alike. Memories are asked image by image, and there must
            be one batch size.

    Returns:
        A prediction per part; or the exception that its method's own work has raised, or its second pass.
        One that the first pass raises is raised here, before anything is learned.
    """
    sizes = sorted({checks.integer("batch_sizes", size, 1) for size in batch_sizes})
    if invariant and len(sizes) != 1:
        raise ValueError(f"invariant=True needs one batch size, got batch_sizes={tuple(batch_sizes)}")
    _check_parts(parts)
    outcomes: dict[int, Prediction | Exception] = {}
    with ExitStack() as stack:
        for method, _ in parts:
            stack.enter_context(method.one_caller)
        stack.enter_context(plain_numerics())
        stack.enter_context(torch.no_grad())
        received = [_Part(method, *method.receive(images)) for method, images in parts]
        for kind, answer in ((GradientMethod, _by_gradients), (EmbeddingMethod, _by_embeddings)):
            sharing = [part for part in received if isinstance(part.method, kind) and part.shares_passes]
            if sharing:
                answers = answer(sharing, sizes, invariant)
                outcomes |= {
                    id(part): _attempt(part.finish, outcome, return_support)
                    for part, outcome in zip(sharing, answers, strict=True)
                }
        for part in received:
            if id(part) not in outcomes:
                outcomes[id(part)] = _attempt(part.predict_alone, return_support, invariant)
    return [outcomes[id(part)] for part in received]


def _check_parts(parts: Sequence[tuple[Method, Tensor]]) -> None:
    if not parts:
        raise ValueError("parts must hold at least one method with its images, got none")
    if len({id(method) for method, _ in parts}) < len(parts):
        raise ValueError("parts must name each method once: put the images of a stream into one tensor")
    if len({id(method.classifier.encoder) for method, _ in parts}) > 1:
        raise ValueError(
            "parts must share one encoder: make their classifiers with ZeroShotClassifier.with_classes, or "
            "give them the same AffineEncoder"
        )
    if any(method.peers is not None for method, _ in parts):
        raise ValueError("parts must hold methods of this process alone, got one of a group of processes")
    sizes = {tuple(method.classifier.check_images(images).shape[1:]) for method, images in parts}
    if len(sizes) > 1:
        raise ValueError(f"parts must have images of one size, got {sorted(sizes)}")


@dataclass(frozen=True, eq=False)
class _Part:
    """A method with its images, which are finite and on its device; ``home`` is where they came from."""

    method: Any
    images: Tensor
    usable: Tensor
    home: torch.device

    @property
    def shares_passes(self) -> bool:
        method: Method = self.method
        return method.shares_passes if isinstance(method, GradientMethod) else True

    def finish(self, answer: Answer, support: bool) -> Prediction:
        method: Method = self.method
        return method.finish(answer, self.images, self.home, support and method.retrieves)

    def predict_alone(self, support: bool, invariant: bool) -> Prediction:
        method: Method = self.method

        def answer(piece: slice) -> Answer:
            return self.learn(piece, lambda: method.adapt(self.images[piece], self.usable[piece]))

        return self.finish(_joined([answer(piece) for piece in self.pieces(invariant)]), support)

    def pieces(self, one_by_one: bool) -> list[slice]:
        """What the method is given at a time."""
        count = len(self.images)
        return [slice(i, i + 1) for i in range(count)] if one_by_one else [slice(0, count)]

    def learn(self, piece: slice, work: Callable[[], _Value]) -> _Value:
        method: Method = self.method
        value = method.learning(piece.stop - piece.start, None, work)
        method.images_seen += piece.stop - piece.start
        return value


def _attempt(work: Callable[..., _Value], *arguments: Any) -> _Value | Exception:
    """What ``work`` returns, or the exception that it raises; an argument that is one is passed on."""
    for argument in arguments:
        if isinstance(argument, Exception):
            return argument
    try:
        return work(*arguments)
    except Exception as error:
        return error


def _shared(parts: list[_Part], sizes: list[int]) -> SharedBatch:
    return SharedBatch([part.method for part in parts], [part.images for part in parts], sizes)


# -- the two kinds of steps -----------------------------------------------------------------------------


def _by_embeddings(parts: list[_Part], sizes: list[int], invariant: bool) -> list[Answer | Exception]:
    encoder: AffineEncoder = parts[0].method.classifier.encoder
    batch = _shared(parts, sizes)
    embeddings = torch.cat([encoder(chunk) for chunk in batch.chunks])

    def answer(part: _Part, own: Tensor) -> Answer:
        method: EmbeddingMethod = part.method

        def of(piece: slice) -> Answer:
            return part.learn(piece, lambda: method.from_embeddings(own[piece], part.usable[piece]))

        return _joined([of(piece) for piece in part.pieces(invariant)])

    return [_attempt(answer, part, embeddings[rows]) for part, rows in zip(parts, batch.rows, strict=True)]


def _by_gradients(parts: list[_Part], sizes: list[int], invariant: bool) -> list[Answer | Exception]:
    encoder: AffineEncoder = parts[0].method.classifier.encoder
    batch = _shared(parts, sizes)
    chunks = [encoder.prepare(chunk) for chunk in batch.chunks]  # once for both passes
    firsts = batch.first_passes(chunks)

    def steps_of(part: _Part, first: FirstPass) -> list[OwnStep]:
        return [_own_step(part, first, piece, sizes) for piece in part.pieces(invariant)]

    steps = [_attempt(steps_of, part, first) for part, first in zip(parts, firsts, strict=True)]
    affine = encoder.base.expand(batch.padded, -1).clone()
    for rows, own in zip(batch.rows, steps, strict=True):
        if not isinstance(own, Exception):
            affine[rows] = torch.cat([step.affine for step in own])
    logits = _attempt(batch.second_passes, chunks, affine)

    def answer(part: _Part, own: list[OwnStep], logits: list[Tensor]) -> Answer:
        place, method = parts.index(part), part.method
        first, mine = firsts[place], logits[place]
        return _joined(
            [
                method.answer(first.of(piece), step, mine[piece])
                for step, piece in zip(own, part.pieces(invariant), strict=True)
            ]
        )

    return [_attempt(answer, part, own, logits) for part, own in zip(parts, steps, strict=True)]


def _own_step(part: _Part, first: FirstPass, piece: slice, sizes: list[int]) -> OwnStep:
    """What a method does between the passes; on a GPU as a CUDA graph."""
    method: GradientMethod = part.method
    own, usable = first.of(piece), part.usable[piece]
    steps = recordings_of(method.classifier).steps
    if not steps.records(method):
        return part.learn(piece, lambda: method.step(own, usable))
    step = steps(method, own, usable, sizes)
    method.images_seen += len(usable)
    return step


# -- answers piece by piece -----------------------------------------------------------------------------


def _joined(answers: list[Answer]) -> Answer:
    """One answer of those for consecutive images."""
    if len(answers) == 1:
        return answers[0]
    zero_shot = [answer.zero_shot_logits for answer in answers if answer.zero_shot_logits is not None]
    supports = [answer.support for answer in answers if answer.support is not None]

    def support() -> Support:
        return _joined_support([support() for support in supports])

    return Answer(
        torch.cat([answer.logits for answer in answers]),
        torch.cat(zero_shot) if len(zero_shot) == len(answers) else None,
        torch.cat([answer.usable for answer in answers]),
        support if len(supports) == len(answers) else None,
    )


def _joined_support(supports: list[Support]) -> Support:
    """Of images that found different numbers of entries: what is missing is not valid."""
    width = max(support.valid.shape[1] for support in supports)

    def column(name: str) -> Tensor:
        columns = [getattr(support, name) for support in supports]
        return torch.cat([F.pad(values, (0, width - values.shape[1])) for values in columns])

    return Support(**{name: column(name) for name in vars(supports[0])})
