"""What gives methods their passes: to one stream, or to several together; on a GPU from CUDA graphs.

A graph starts all kernels of a step together. It holds the addresses of a method's state and the values of
its parameters, so that a step is recorded again when a parameter or the size of a memory has changed. What
the host has to do for a step, counting images and making room for them, stays outside the graph.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from inspect import isgeneratorfunction
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, WeakMethod, ref

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.kernels.graphs import Recorded, Recorder, recording_holds
from ramen.methods._passes import (
    Answer,
    Pass,
    Seen,
    Steps,
    Support,
    drive,
    give,
    joined_support,
    mean_of_rows,
    numbers,
)
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.devices import upload
from ramen.utils.numerics import finite_rows, plain_numerics

if TYPE_CHECKING:
    from ramen.methods._method import Method, Prediction

_Value = TypeVar("_Value")

# -- one stream -------------------------------------------------------------------------------------------


class Runner:
    """Gives one method its passes; on a GPU its whole steps or, if these cannot be, its passes are recorded.

    Steps with and without support share the memory of their graphs. It does not keep its method alive, which
    owns it.
    """

    def __init__(self, method: "Method", recorder: Recorder) -> None:
        self._recorder = recorder
        self._steps = {support: _Step(ref(method), support) for support in (False, True)}
        self.recorded = {support: recorder.record(step) for support, step in self._steps.items()}
        self._passes: dict[tuple[Any, ...], tuple[_RecordedPass, Recorded]] = {}

    def answer(self, method: "Method", images: Tensor, usable: Tensor) -> Answer:
        """The answer of one call of ``adapt``; its passes over ``images`` prepare them once."""
        prepared: list[Tensor] = []

        def given(wanted: Pass) -> Seen:
            if wanted.images is not images or wanted.statistics != "source":
                return self.give(method, wanted)
            if not prepared:
                prepared.append(method.classifier.encoder.prepare(images))
            return self.give(method, wanted, prepared[0])

        answer = drive(method.adapt(images, usable), given)
        if method.peers is not None and len(answer.usable) != len(images):
            return answer.of(method.peers.own)
        return answer

    def give(self, method: "Method", wanted: Pass, prepared: Tensor | None = None) -> Seen:
        """One pass; if only passes of the method are recorded, from a graph."""
        if not method._records or method.records_steps:
            return give(method.classifier, wanted, peers=method.peers, prepared=prepared)
        if method.peers is None:
            return self._recorded(method, wanted, prepared)
        if wanted.loss is None or wanted.each:
            return self._recorded(method, wanted, prepared)
        if not wanted.common:  # what the host exchanges cannot be part of a graph
            return give(method.classifier, wanted, peers=method.peers, prepared=prepared)
        return self._recorded(method, wanted, prepared).averaged(method.peers)

    def step(
        self, method: "Method", images: Tensor, usable: Tensor, tags: Tensor | None, support: bool
    ) -> Answer:
        """A whole step from a graph."""
        device, batch = images.device, len(images)
        first = _admit(method, batch)
        tensors = self.recorded[support](
            images.to(method.classifier.dtype),  # one recording for images of any type
            usable,
            torch.full((batch,), -1, device=device) if tags is None else upload(tags, device),
            torch.arange(first, first + batch, device=device),
            settings=settings_of(method),
        )
        return self._steps[support].form.unpacked(tensors)

    def _recorded(self, method: "Method", wanted: Pass, prepared: Tensor | None) -> Seen:
        kind = wanted.kind
        if kind not in self._passes:
            function = _RecordedPass(method.classifier, wanted.like())
            self._passes[kind] = function, self._recorder.record(function)
        function, recorded = self._passes[kind]
        images = wanted.images if prepared is None or wanted.may_need_images else prepared
        given = images, wanted.affine, wanted.usable, *wanted.tensors
        found = recorded(*(tensor for tensor in given if tensor is not None))
        return Seen(**dict(zip(function.names, found, strict=True)), images=wanted.images)


class _RecordedPass:
    """One kind of pass as a function of tensors."""

    def __init__(self, classifier: ZeroShotClassifier, like: Callable[..., Pass]) -> None:
        self.classifier, self.like = classifier, like
        self.names: list[str] = []  # of what it returns

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        seen = replace(give(self.classifier, self.like(*tensors)), images=None)  # type: ignore[arg-type]
        found = {name: value for name, value in vars(seen).items() if value is not None}
        self.names = list(found)
        return tuple(found.values())


@dataclass
class _Form:
    """What of an answer is no tensor."""

    has_zero_shot: bool = False
    then: Callable[[], Callable[..., Tensor] | None] = lambda: None
    has_support: bool = False

    def packed(self, answer: Answer, support: bool) -> tuple[Tensor, ...]:
        """The tensors of an answer, which has this form from then on."""
        logits, zero_shot = answer.logits, answer.zero_shot_logits
        self.has_zero_shot, self.then = zero_shot is not None, _weakly(answer.then)
        head = logits if isinstance(logits, Tensor) else logits.affine
        assert head is not None
        entries = answer.support() if support and answer.support is not None else None
        self.has_support = entries is not None
        parts = () if entries is None else tuple(getattr(entries, one.name) for one in fields(entries))
        return head, answer.usable, *(() if zero_shot is None else (zero_shot,)), *parts, *answer.kept

    def unpacked(self, tensors: Sequence[Tensor], images: Tensor | None = None) -> Answer:
        """The answer that consists of these; with ``images`` the first one is what they are to pass with."""
        head, usable, *rest = tensors
        zero_shot = rest.pop(0) if self.has_zero_shot else None
        size = len(fields(Support)) if self.has_support else 0
        entries = Support(*rest[:size]) if size else None
        logits = head if images is None else Pass(images, head)
        support = None if entries is None else lambda: entries
        return Answer(logits, zero_shot, usable, support, self.then(), tuple(rest[size:]))


def _weakly(function: Callable[..., Tensor] | None) -> Callable[[], Callable[..., Tensor] | None]:
    """What returns a function and, if it is one of a method, does not keep that alive."""
    return WeakMethod(function) if isinstance(function, MethodType) else lambda: function


@dataclass
class _Step:
    """One kind of step as a function of tensors, which may be recorded."""

    method: "ref[Method]"  # a strong reference would keep the method alive by way of the recording
    support: bool
    form: _Form = field(default_factory=_Form)

    def __call__(
        self, images: Tensor, usable: Tensor, tags: Tensor, numbers: Tensor, *, settings: Any
    ) -> tuple[Tensor, ...]:
        """The parts of the answer that are tensors; the method's state has its new values then."""
        method = self.method()
        assert method is not None
        for memory in method.memories.values():
            memory.announce(tags, numbers)
        answer = method._runner.answer(method, images, usable)
        valid = recording_holds()
        if valid is not None and method.memories:
            raise RuntimeError("a step that asks whether something holds cannot be recorded with a memory")
        method.store_states(valid)
        return self.form.packed(answer, self.support)


def settings_of(method: "Method") -> tuple[Any, ...]:
    """What a step depends on beside tensors: a recording is valid for one of these."""
    parameters = tuple(getattr(method, name, None) for name in ("seed", *method.info.defaults))
    return *parameters, *(memory.recording_key() for memory in method.memories.values())


def _admit(method: "Method", images: int) -> int:
    """Make room for images in the memories; the number of the first one in the stream."""
    admitted = [memory.admit(images) for memory in method.memories.values()]
    return next((numbers.start for numbers in admitted if numbers is not None), method.images_seen)


# -- several streams --------------------------------------------------------------------------------------


def predict_together(
    parts: "Sequence[tuple[Method, Tensor]]",
    *,
    return_support: bool = False,
    batch_sizes: Sequence[int] = (),
    invariant: bool = False,
) -> "list[Prediction | Exception]":
    """Answer images of several streams, as ``method.predict`` does for each, but with shared passes.

    All passes that the methods ask for are shared but those with the batch's statistics. A method that calls
    its classifier itself is asked by itself.

    Args:
        parts: Methods, each of them once, and their images. Their classifiers have the same encoder; their
            classes may differ.
        return_support: Also return which entries were used, for methods that retrieve some.
        batch_sizes: The sizes of batches that go through the encoder: blank images fill up the smallest one
            that is large enough, and more images than the largest are cut up. If not given, all images go
            together as they are. Few sizes mean few CUDA graphs.
        invariant: No answer depends on what else is in the batch, to the last bit, as far as the device's
            matrix products treat all rows of a batch alike. Methods are asked image by image, and there must
            be one batch size.

    Returns:
        A prediction per part; or the exception that its method's own work has raised, or a later pass.
        One that the first pass raises is raised here, before anything is learned.
    """
    sizes = sorted({checks.integer("batch_sizes", size, 1) for size in batch_sizes})
    if invariant and len(sizes) != 1:
        raise ValueError(f"invariant=True needs one batch size, got batch_sizes={tuple(batch_sizes)}")
    _check_parts(parts)
    with ExitStack() as stack:
        for method, _ in parts:
            stack.enter_context(method.one_caller)
        stack.enter_context(plain_numerics())
        stack.enter_context(torch.no_grad())
        streams = _received(parts, sizes, invariant)
        shared, is_first = _SharedPasses(sizes), True
        while asking := [run for stream in streams for run in stream.asking()]:
            found = shared.give_all(asking, may_raise=is_first)
            is_first = False
            for run, seen in zip(asking, found, strict=True):
                run.seen = seen
            for stream in streams:
                stream.advance()
        return _finished(streams, return_support)


def _check_parts(parts: "Sequence[tuple[Method, Tensor]]") -> None:
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


def _received(parts: "Sequence[tuple[Method, Tensor]]", sizes: list[int], invariant: bool) -> "list[_Stream]":
    """The streams with their images, finite and on the device; those of all streams at once, if possible."""
    if len({(images.device, images.dtype) for _, images in parts}) > 1:
        received = [method.receive(images) for method, images in parts]
    else:
        for method, images in parts[1:]:
            method._see(images)
        counts = [len(images) for _, images in parts]
        images, usable, home = parts[0][0].receive(torch.cat([images for _, images in parts]))
        received = [(*own, home) for own in zip(images.split(counts), usable.split(counts), strict=True)]
    return [_Stream(method, *own, sizes, invariant) for (method, _), own in zip(parts, received, strict=True)]


class _Run:
    """One call of a method's ``adapt``, which may wait for a pass."""

    def __init__(self, method: "Method", images: Tensor, usable: Tensor) -> None:
        self.method, self.images, self.usable = method, images, usable
        self.steps: Steps | None = None
        self.wanted: Pass | None = None
        self.seen: Seen | Exception | None = None
        self.answer: Answer | None = None
        self.is_new = True  # nothing has been learned

    def start(self) -> None:
        """Up to its first pass; nothing is learned before that."""
        steps = self.method.adapt(self.images, self.usable)
        assert not isinstance(steps, Answer)
        self.steps, self.wanted = steps, next(steps)

    def put_off(self) -> None:
        """Start again later."""
        self.steps = self.wanted = None

    @property
    def starts_afresh(self) -> bool:
        """Whether its first pass does not depend on what the stream has taught."""
        wanted = self.wanted
        return (
            wanted is not None
            and wanted.is_of_rows_alone
            and (wanted.affine is None or wanted.affine is self.method.classifier.encoder.base)
        )

    def take(self, sizes: Sequence[int] = ()) -> None:
        """Go on with what the pass has seen, up to the next one or to the answer.

        Args:
            sizes: Of the shared passes, the smallest first.
        """
        seen, self.seen = self.seen, None
        if isinstance(seen, Exception):
            raise seen
        assert seen is not None
        if self.answer is not None:
            self.answer = self.answer.given(seen)
            self.wanted = None
        elif self.is_new and (answer := recordings_of(self.method.classifier).answer(self, seen, sizes)):
            self._learned(answer)
        else:
            assert self.steps is not None
            self._send(self.steps, seen)
        self.method.store_states()

    def _send(self, steps: Steps, seen: Seen) -> None:
        if self.is_new:
            _admit(self.method, len(self.images))
            for memory in self.method.memories.values():
                memory.announce(None)
        was_new, self.is_new = self.is_new, False
        try:
            self.wanted = steps.send(seen)
        except StopIteration as end:
            self._learned(end.value)
        if was_new:
            recordings_of(self.method.classifier).note(self)

    def _learned(self, answer: Answer) -> None:
        self.is_new, self.answer = False, answer
        self.method.images_seen += len(self.images)
        self.wanted = answer.logits if isinstance(answer.logits, Pass) else None


class _Stream:
    """A method with its images, which go through ``adapt`` at once or one after the other.

    Attributes:
        error: What its method has raised.
    """

    def __init__(
        self,
        method: "Method",
        images: Tensor,
        usable: Tensor,
        home: torch.device,
        sizes: list[int],
        invariant: bool,
    ) -> None:
        self.method, self.images, self.usable, self.home, self.sizes = method, images, usable, home, sizes
        self.error: Exception | None = None
        self._most = max(len(images), 1) if method.most_images is None else method.most_images
        size = 1 if invariant else self._most
        whole = images, usable  # the same tensor, whose passes are prepared once
        pieces = zip(*(rows.split(size) for rows in whole), strict=True) if len(images) > size else [whole]
        self.runs = [_Run(method, *piece) for piece in pieces]
        self._place = 0  # of the run that may learn
        self._alone = not isgeneratorfunction(method.adapt)
        if not self._alone:
            self._attempt(self._start_all)

    def _start_all(self) -> None:
        for run in self.runs:
            run.start()
            if run is not self.runs[0] and not run.starts_afresh:
                run.put_off()
                break

    def asking(self) -> list[_Run]:
        """Those that wait for a pass."""
        if self.error is not None:
            return []
        return [run for run in self.runs if run.wanted is not None and run.seen is None]

    def advance(self) -> None:
        """Go on as far as possible."""
        if self.error is None:
            self._attempt(self._advance)

    def _advance(self) -> None:
        for run in self.runs[: self._place]:
            if run.seen is not None:
                run.take(self.sizes)  # the last pass
        while self._place < len(self.runs):
            run = self.runs[self._place]
            waiting = [len(one.images) for one in self.runs[: self._place] if one.wanted is not None]
            if waiting and sum(waiting) + len(run.images) > self._most:
                return  # what is learned with these answers comes first
            if run.steps is None:
                run.start()
            if run.seen is None:
                return
            run.take(self.sizes)
            if run.answer is None:
                return
            self._place += 1

    def _attempt(self, work: Callable[[], _Value]) -> _Value | None:
        try:
            return work()
        except Exception as error:
            self.error = error
            return None

    def answer(self) -> Answer:
        """That of all images."""
        if self.error is not None:
            raise self.error
        if self._alone:
            return _joined([self._answer_alone(run) for run in self.runs])
        return _joined([run.answer for run in self.runs if run.answer is not None])

    def _answer_alone(self, run: _Run) -> Answer:
        count = len(run.images)
        answer = self.method.learning(
            count, None, lambda: self.method._runner.answer(self.method, run.images, run.usable)
        )
        self.method.images_seen += count
        return answer


# -- passes that streams share ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Segment:
    """Some images of what a run wants to pass, in a chunk."""

    place: int  # of the run
    wanted: Pass
    classifier: ZeroShotClassifier
    images: slice  # of the run
    rows: slice  # of the chunk

    @property
    def affine(self) -> Tensor:
        """The norm parameters of these images."""
        affine = self.wanted.affine
        if affine is None:
            affine = self.classifier.encoder.base
        return (
            affine[self.images] if affine.ndim == 2 else affine.expand(self.rows.stop - self.rows.start, -1)
        )


class _SharedPasses:
    """Gives what several streams want.

    Args:
        sizes: That chunks of images may have, the smallest first; without any, all images are one chunk.
    """

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._prepared: dict[tuple[Any, ...], tuple[list[Tensor], Tensor]] = {}

    def give_all(self, runs: Sequence[_Run], *, may_raise: bool) -> list[Seen | Exception]:
        """What each run wants, or why there is nothing.

        Args:
            runs: That wait for a pass.
            may_raise: Whether to raise what is raised by a shared pass.
        """
        found: dict[int, Seen | Exception] = {}
        kinds: dict[tuple[Any, ...], list[int]] = {}
        for place, run in enumerate(runs):
            wanted = run.wanted
            assert wanted is not None
            if wanted.is_shareable:
                shape = wanted.images.shape[1:], wanted.images.dtype
                kinds.setdefault((wanted.loss is None, wanted.of == "features", shape), []).append(place)
            else:
                found[place] = _attempt(partial(give, run.method.classifier, wanted))
        for places in kinds.values():
            try:
                found |= zip(places, self._give([runs[place] for place in places]), strict=True)
            except Exception as error:
                if may_raise:
                    raise
                found |= dict.fromkeys(places, error)
        return [found[place] for place in range(len(runs))]

    def _give(self, runs: Sequence[_Run]) -> list[Seen | Exception]:
        parts: list[list[Seen]] = [[] for _ in runs]
        for chunk in self._chunks(runs):
            images = self._images(chunk)
            give_chunk = _forward if chunk[0].wanted.loss is None else _gradients
            for segment, seen in zip(chunk, give_chunk(images, chunk), strict=True):
                parts[segment.place].append(seen)
        whole = [part[0] if len(part) == 1 else _cat(part) for part in parts]
        return _of_batches([run.method.classifier for run in runs], [_wanted(run) for run in runs], whole)

    def _chunks(self, runs: Sequence[_Run]) -> list[list[_Segment]]:
        """Each of an allowed size, unless the loss of a batch is larger."""
        most = self._sizes[-1] if self._sizes else sum(len(run.images) for run in runs)
        chunks: list[list[_Segment]] = [[]]
        filled = 0
        for place, run in enumerate(runs):
            wanted, start = _wanted(run), 0
            count = len(wanted.images)
            while start < count:
                whole = not wanted.is_of_rows_alone
                if filled and (filled >= most or (whole and filled + count > most)):
                    chunks.append([])
                    filled = 0
                some = count if whole else min(count - start, most - filled)
                rows = slice(filled, filled + some)
                images = slice(start, start + some)
                chunks[-1].append(_Segment(place, wanted, run.method.classifier, images, rows))
                start, filled = start + some, filled + some
        return chunks

    def _images(self, chunk: list[_Segment]) -> Tensor:
        """The images of a chunk as the encoder prepares them, once for all passes."""
        key = tuple((id(one.wanted.images), one.images.start, one.images.stop) for one in chunk)
        if key not in self._prepared:
            given = [one.wanted.images for one in chunk]
            images = torch.cat([images[one.images] for images, one in zip(given, chunk, strict=True)])
            size = next((size for size in self._sizes if size >= len(images)), len(images))
            prepared = chunk[0].classifier.encoder.prepare(_filled_up(images, size))
            self._prepared[key] = given, prepared  # which must live, so that no other has their ids
        return self._prepared[key][1]


def _wanted(run: _Run) -> Pass:
    assert run.wanted is not None
    return run.wanted


def _filled_up(tensor: Tensor, size: int) -> Tensor:
    missing = size - len(tensor)
    return F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, missing)) if missing else tensor


def _rows(images: Tensor, chunk: list[_Segment]) -> Tensor | None:
    """Norm parameters ``(B, G)`` of all images of a chunk; None if they are the pretrained ones."""
    base = chunk[0].classifier.encoder.base
    if all(one.wanted.affine is None or one.wanted.affine is base for one in chunk):
        return None
    missing = len(images) - chunk[-1].rows.stop
    return torch.cat([*(one.affine for one in chunk), *([base.expand(missing, -1)] if missing else [])])


def _classifiers(chunk: list[_Segment]) -> list[ZeroShotClassifier]:
    return list({id(one.classifier): one.classifier for one in chunk}.values())


def _forward(images: Tensor, chunk: list[_Segment]) -> list[Seen]:
    rows, classifiers, of = _rows(images, chunk), _classifiers(chunk), chunk[0].wanted.of
    given = (images,) if rows is None else (images, rows)
    if len(classifiers) == 1 and all(one.wanted.of == of for one in chunk):
        found = recordings_of(classifiers[0]).passes(None, of, each=False)(*given)
    else:
        embeddings = classifiers[0].encode(*given, normalize=of != "features")
        asked = {id(one.classifier): one.classifier for one in chunk if one.wanted.of == "logits"}
        logits = {key: classifier.logits(embeddings) for key, classifier in asked.items()}
        return [
            Seen(embeddings[one.rows], logits[id(one.classifier)][one.rows])
            if one.wanted.of == "logits"
            else Seen(embeddings[one.rows])
            for one in chunk
        ]
    return [Seen(*(part[one.rows] for part in found)) for one in chunk]


def _gradients(images: Tensor, chunk: list[_Segment]) -> list[Seen]:
    """With a gradient for each image: of its own loss, or of its batch's."""
    rows, classifiers, wanted = _rows(images, chunk), _classifiers(chunk), chunk[0].wanted
    losses = {one.wanted.loss for one in chunk}
    if len(classifiers) == len(losses) == 1 and all(one.wanted.is_of_rows_alone for one in chunk):
        function = recordings_of(classifiers[0]).passes(wanted.loss, wanted.of, each=True)
        seen = Seen(*function(*((images,) if rows is None else (images, rows))))
        return [seen.of(one.rows) for one in chunk]
    return _joined_gradients(images, chunk, rows)


def _joined_gradients(images: Tensor, chunk: list[_Segment], rows: Tensor | None) -> list[Seen]:
    """For different classifiers, or losses that are one of the batch or need more than logits."""
    classifiers, first = _classifiers(chunk), chunk[0]
    start = first.classifier.encoder.base.expand(len(images), -1) if rows is None else rows
    seen: dict[
        int, tuple[Tensor, Tensor | None]
    ] = {}  # losses, and which images count, by place in the chunk
    with torch.enable_grad():
        leaf = start.detach().requires_grad_()
        embeddings = classifiers[0].encode(images, leaf, normalize=first.wanted.of != "features")
        logits = {id(one): one.logits(embeddings) for one in classifiers}
        terms = []
        by_loss = _by_loss(chunk)
        others = by_loss.pop(None, [])
        for segments in by_loss.values():
            own = logits[id(segments[0][1].classifier)]
            whole, counted = numbers(segments[0][1].wanted, own)
            inside = torch.zeros(len(images), dtype=torch.bool, device="cpu")
            for place, one in segments:
                inside[one.rows] = True
                seen[place] = whole[one.rows], None if counted is None else counted[one.rows]
            terms.append(torch.where(upload(inside, images.device), whole, 0).sum())
        for place, one in others:
            of = logits[id(one.classifier)] if one.wanted.is_of_rows else embeddings
            seen[place] = numbers(one.wanted, of[one.rows])
            terms.append(seen[place][0].sum())
        gradients = classifiers[0].gradient(torch.stack(terms).sum(), leaf)
    return [
        Seen(
            embeddings.detach()[one.rows],
            logits[id(one.classifier)].detach()[one.rows],
            seen[place][0].detach(),
            gradients[one.rows],
            counted=seen[place][1],  # type: ignore[arg-type]
        )
        for place, one in enumerate(chunk)
    ]


def _by_loss(chunk: list[_Segment]) -> dict[Any, list[tuple[int, _Segment]]]:
    """Those whose losses can be computed for all images at once, as numbers that depend on an image alone.

    Then their bits depend on nothing else. The others are found under None.
    """
    found: dict[Any, list[tuple[int, _Segment]]] = {}
    for place, one in enumerate(chunk):
        key = (id(one.classifier), one.wanted.loss) if one.wanted.is_of_rows_alone else None
        found.setdefault(key, []).append((place, one))
    return found


def _cat(parts: list[Seen]) -> Seen:
    """That of consecutive images."""
    columns = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
    whole = {name: None if found[0] is None else torch.cat(found) for name, found in columns.items()}
    return Seen(**whole)  # type: ignore[arg-type]


def _of_batches(
    classifiers: list[ZeroShotClassifier], asked: list[Pass], found: list[Seen]
) -> list[Seen | Exception]:
    """What was asked for, of what each image has shown."""
    whole: list[Seen | Exception] = []
    checked: dict[int, Tensor] = {}
    for place, (wanted, seen) in enumerate(zip(asked, found, strict=True)):
        if wanted.loss is None or wanted.each:
            if wanted.usable is not None:
                seen = replace(seen, usable=wanted.usable & finite_rows(seen.embeddings))
            whole.append(replace(seen, images=wanted.images))
        elif wanted.is_of_rows:
            whole.append(mean_of_rows(wanted, seen))
        else:
            assert wanted.usable is not None
            usable = wanted.usable & finite_rows(seen.embeddings) if wanted.repeat else wanted.usable
            gradient = seen.gradient.sum(0)
            whole.append(
                replace(seen, losses=None, gradient=gradient, usable=usable, images=wanted.images)  # type: ignore[arg-type]
            )
            if wanted.repeat:
                checked[place] = gradient.isfinite().all()
    if checked:
        for place, is_finite in zip(checked, torch.stack([*checked.values()]).tolist(), strict=True):
            if not is_finite:
                whole[place] = _attempt(partial(give, classifiers[place], asked[place]))
    return whole


# -- what streams of a classifier have recorded -----------------------------------------------------------

# Smaller batches are filled up to one of these, with images that leave no trace; larger ones to a size of the
# shared passes, if these have some.
_SIZES = (8, 32)
_MOST_METHODS = 256  # whose recordings are kept
# Recording takes as long as some steps without a graph: it does not pay for streams of a few images, and each
# time that a memory grows it has to be done again.
_CALLS_TO_RECORD = 8


class _Recordings:
    """What streams of a classifier compute, on a GPU as CUDA graphs, which share their memory.

    A service has many streams, each with a method of its own that gets a few images at a time. Starting the
    kernels of what it does between passes one by one would take longer than the passes.
    """

    def __init__(self, classifier: ZeroShotClassifier) -> None:
        self._recorder = classifier.recorder()
        self._classifier = ref(classifier)  # the table below must not keep it alive
        self._passes: dict[tuple[Any, ...], Recorded] = {}
        # the least recently used one first; by their ids, as nothing here keeps a method alive
        self._answers: OrderedDict[int, tuple[ref[Method], _FirstAnswer, Recorded]] = OrderedDict()

    def passes(self, loss: Any, of: str, *, each: bool) -> Callable[..., tuple[Tensor, ...]]:
        """A pass that many streams share, as a function of images and, if they have some, norm parameters."""
        function = partial(_chunk_pass, self._classifier, loss, of, each)
        if loss is not None and not (isinstance(loss, FunctionType) and loss.__closure__ is None):
            return function  # it may be new each time, and keep something alive
        if (loss, of) not in self._passes:
            self._passes[loss, of] = self._recorder.record(function)
        return self._passes[loss, of]

    def _records(self, method: "Method") -> bool:
        return self._recorder.records_on(method.classifier.device) and method.records_steps

    def note(self, run: _Run) -> None:
        """Remember whether a method comes to an answer after its first pass."""
        if not self._records(run.method):
            return
        answer, made = run.answer, self._of(run.method)[1]
        made.comes_to_an_end = answer is not None and (
            isinstance(answer.logits, Tensor)
            or (answer.logits.images is run.images and answer.logits.is_plain)
        )

    def answer(self, run: _Run, seen: Seen, sizes: Sequence[int] = ()) -> Answer | None:
        """What a method makes of a first pass, from a graph; None if it is not known to come to an answer."""
        method, wanted = run.method, _wanted(run)
        if not self._records(method):
            return None
        _, made, recorded = self._of(method)
        if not made.comes_to_an_end or not run.starts_afresh or not (wanted.each or wanted.loss is None):
            return None
        count = len(run.images)
        size = next((size for size in (*_SIZES, *sizes) if size >= count), count)
        start = _admit(method, count)
        known = {name: value for name, value in vars(seen).items() if value is not None and name != "images"}
        made.names = list(known)
        tensors = recorded(
            *(_filled_up(tensor, size) for tensor in (run.images, run.usable)),
            torch.arange(start, start + size, device=run.usable.device).clamp_max(start + count - 1),
            *(_filled_up(tensor, size) for tensor in known.values()),
            settings=settings_of(method),
        )
        own = [tensor[:count] if tensor.ndim and len(tensor) == size else tensor for tensor in tensors]
        return made.form.unpacked(own, run.images if made.has_pass else None)

    def _of(self, method: "Method") -> "tuple[ref[Method], _FirstAnswer, Recorded]":
        known = self._answers.get(id(method))
        if known is None or known[0]() is not method:
            weak = ref(method)
            made = _FirstAnswer(weak)
            recorded = self._recorder.record(made, calls=_CALLS_TO_RECORD)
            known = self._answers[id(method)] = weak, made, recorded
        self._answers.move_to_end(id(method))
        while len(self._answers) > _MOST_METHODS:
            self._answers.popitem(last=False)
        return known


def _chunk_pass(
    classifier_of: "ref[ZeroShotClassifier]",
    loss: Any,
    of: str,
    each: bool,
    images: Tensor,
    affine: Tensor | None = None,
) -> tuple[Tensor, ...]:
    classifier = classifier_of()
    assert classifier is not None
    seen = give(classifier, Pass(images, affine, loss, of=of, each=each))
    found = seen.embeddings, seen.logits, seen.losses, seen.gradient, seen.counted
    return tuple(tensor for tensor in found if tensor is not None)


@dataclass
class _FirstAnswer:
    """What a method makes of its first pass, as a function of tensors; what it keeps, it changes in place."""

    method: "ref[Method]"
    comes_to_an_end: bool = False
    names: list[str] = field(default_factory=list)  # of what the pass has seen
    form: _Form = field(default_factory=_Form)
    has_pass: bool = False

    def __call__(
        self, images: Tensor, usable: Tensor, numbers: Tensor, *seen: Tensor, settings: Any
    ) -> tuple[Tensor, ...]:
        """The parts of the answer that are tensors."""
        method = self.method()
        assert method is not None
        for memory in method.memories.values():
            memory.announce(None, numbers)
        steps = method.adapt(images, usable)
        assert not isinstance(steps, Answer)
        next(steps)
        try:
            steps.send(Seen(**dict(zip(self.names, seen, strict=True)), images=images))
        except StopIteration as end:
            answer: Answer = end.value
        else:
            raise RuntimeError(f"{type(method).__name__} asks for more passes than it has asked for before")
        method.store_states()
        self.has_pass = isinstance(answer.logits, Pass)
        return self.form.packed(answer, support=True)


_RECORDINGS: WeakKeyDictionary[ZeroShotClassifier, _Recordings] = WeakKeyDictionary()


def recordings_of(classifier: ZeroShotClassifier) -> _Recordings:
    """Those of its streams."""
    if classifier not in _RECORDINGS:
        _RECORDINGS[classifier] = _Recordings(classifier)
    return _RECORDINGS[classifier]


# -- answers ----------------------------------------------------------------------------------------------


def _attempt(work: Callable[[], _Value]) -> _Value | Exception:
    try:
        return work()
    except Exception as error:
        return error


def _finished(streams: list[_Stream], support: bool) -> "list[Prediction | Exception]":
    answers = [_attempt(stream.answer) for stream in streams]
    return [
        answer
        if isinstance(answer, Exception)
        else _attempt(
            partial(
                stream.method.finish, answer, stream.images, stream.home, support and stream.method.retrieves
            )
        )
        for stream, answer in zip(streams, answers, strict=True)
    ]


def _joined(answers: list[Answer]) -> Answer:
    """One answer of those for consecutive images."""
    if len(answers) == 1:
        return answers[0]
    zero_shot = [answer.zero_shot_logits for answer in answers if answer.zero_shot_logits is not None]
    supports = [answer.support for answer in answers if answer.support is not None]

    def support() -> Support:
        return joined_support([support() for support in supports])

    return Answer(
        torch.cat([answer.logits for answer in answers]),  # type: ignore[misc]
        torch.cat(zero_shot) if len(zero_shot) == len(answers) else None,
        torch.cat([answer.usable for answer in answers]),
        support if len(supports) == len(answers) else None,
    )
