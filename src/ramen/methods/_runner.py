"""What gives methods their passes: to one stream, or to several together; on a GPU from CUDA graphs.

A graph starts all kernels of a step together. It holds the addresses of a method's state and the values of
its parameters, so that a step is recorded again when a parameter or the size of a memory has changed. What
the host has to do for a step, counting images and making room for them, stays outside the graph.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import isgeneratorfunction
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, WeakMethod, ref

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.kernels.graphs import Recorded, Recorder, recording_holds
from ramen.methods._passes import (
    Answer,
    Pass,
    Prediction,
    Seen,
    Steps,
    Support,
    drive,
    give,
    joined_support,
    loss_of,
    mean_of_rows,
)
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.devices import upload
from ramen.utils.numerics import finite_or_zero, finite_rows, plain_numerics

if TYPE_CHECKING:
    from ramen.methods._method import Method

_Value = TypeVar("_Value")

# -- one stream -------------------------------------------------------------------------------------------


class Runner:
    """Gives one method its passes; on a GPU its whole steps or, if these cannot be, its passes are recorded.

    Steps with and without support share the memory of their graphs. It does not keep its method alive, which
    owns it.
    """

    def __init__(self, method: "Method", recorder: Recorder) -> None:
        self._steps = {support: _Step(ref(method), support) for support in (False, True)}
        self.recorded = {support: recorder.record(step) for support, step in self._steps.items()}
        self._passes = RecordedPasses(method.classifier, recorder)
        self._records = recorder.records_on(method.classifier.device)

    def records_steps(self, method: "Method") -> bool:
        """Whether a CUDA graph holds whole steps, with all that they do to state and memories."""
        if not self._records or method.peers is not None:  # what the host exchanges cannot be part of a graph
            return False
        device = method.classifier.device
        return method.recordable and all(one.recordable_on(device) for one in method.state.memories.values())

    def answer(self, method: "Method", images: Tensor, usable: Tensor) -> Answer:
        """The answer of one call of ``adapt``; its passes over ``images`` prepare them once."""
        prepared: list[Tensor] = []

        def given(wanted: Pass) -> Seen:
            if wanted.images is not images or wanted.statistics != "source":
                return self._give(method, wanted)
            if not prepared:
                prepared.append(method.classifier.encoder.prepare(images))
            return self._give(method, wanted, prepared[0])

        answer = drive(method.adapt(images, usable), given)
        if method.peers is not None and len(answer.usable) != len(images):
            return answer.of(method.peers.own)
        return answer

    def _give(self, method: "Method", wanted: Pass, prepared: Tensor | None = None) -> Seen:
        """One pass; from a graph if whole steps are none, and the host exchanges nothing within it."""
        peers, classifier = method.peers, method.classifier
        has_gradient_of_all = wanted.loss is not None and not wanted.each
        exchanges = peers is not None and has_gradient_of_all and not wanted.common
        if not self._records or self.records_steps(method) or exchanges:
            return give(classifier, wanted, peers=peers, prepared=prepared)
        seen = self._passes.give(wanted, prepared)
        return seen if peers is None or not has_gradient_of_all else seen.averaged(peers)

    def answer_and_learn(
        self, method: "Method", images: Tensor, usable: Tensor, tags: Tensor | None, *, support: bool
    ) -> Answer:
        """The answer of one step, whose new states are stored; from a graph, if one may hold it."""
        if not self.records_steps(method):
            return learning(method, len(images), tags, partial(self.answer, method, images, usable))
        device, batch = images.device, len(images)
        first = _admit(method, batch)
        tensors = self.recorded[support](
            images.to(method.classifier.dtype),  # one recording for images of any type
            usable,
            torch.full((batch,), -1, device=device) if tags is None else upload(tags, device),
            torch.arange(first, first + batch, device=device),
            settings=settings_of(method),
        )
        return self._steps[support].unpacked(tensors)


class RecordedPasses:
    """Passes of a classifier as functions of tensors, each kind of which is recorded."""

    def __init__(self, classifier: ZeroShotClassifier, recorder: Recorder) -> None:
        self._classifier, self._recorder = ref(classifier), recorder
        self._known: dict[Hashable, tuple[Recorded, list[str]]] = {}

    def give(self, wanted: Pass, prepared: Tensor | None = None) -> Seen:
        """A pass by itself."""
        classifier = self._classifier()
        assert classifier is not None
        if not (self._recorder.records_on(classifier.device) and _lasts(wanted.loss)):
            return give(classifier, wanted, prepared=prepared)
        kind, like = wanted.pattern()
        if kind not in self._known:
            names: list[str] = []
            self._known[kind] = self._recorder.record(partial(self._pass, like, names)), names
        recorded, names = self._known[kind]
        images, *others = wanted.given()
        found = recorded(images if prepared is None or wanted.needs_images else prepared, *others)
        return Seen(**dict(zip(names, found, strict=True)), images=wanted.images)

    def _pass(self, like: Any, names: list[str], *tensors: Tensor) -> tuple[Tensor, ...]:
        classifier = self._classifier()
        assert classifier is not None
        seen = vars(replace(give(classifier, like(*tensors)), images=None))  # type: ignore[arg-type]
        names[:] = [name for name, value in seen.items() if value is not None]
        return tuple(seen[name] for name in names)


def _lasts(loss: Any) -> bool:
    """Whether a loss is not made anew for each pass, so that a recording can be found by it."""
    return loss is None or "<locals>" not in getattr(loss, "__qualname__", "<locals>")


@dataclass
class _Step:
    """What a method does with a batch, as a function of tensors, which may be recorded.

    All of it; or, where it is known what the first pass has ``seen``, what follows from that.
    """

    method: "ref[Method]"  # a strong reference would keep the method alive by way of the recording
    support: bool
    seen: tuple[str, ...] = ()
    # What of the answer is no tensor.
    is_pass: bool = False
    has_zero_shot: bool = False
    has_support: bool = False
    then: Any = lambda: None
    # Whether it is known to come to an answer after its first pass.
    comes_to_an_end: bool = False

    def __call__(
        self, images: Tensor, usable: Tensor, tags: Tensor, numbers: Tensor, *first: Tensor, settings: Any
    ) -> tuple[Tensor, ...]:
        """The parts of the answer that are tensors; the method's state has its new values then."""
        method = self.method()
        assert method is not None
        for memory in method.state.memories.values():
            memory.announce(tags, numbers)
        if self.seen:
            seen = Seen(**dict(zip(self.seen, first, strict=True)), images=images)
            answer = _after_one_pass(method.adapt(images, usable), seen)
        else:
            answer = method._runner.answer(method, images, usable)
        valid = recording_holds()
        if valid is not None and method.state.memories:
            raise RuntimeError("a step that asks whether something holds cannot be recorded with a memory")
        method.state.commit(vars(method), valid)
        return self._packed(answer)

    def _packed(self, answer: Answer) -> tuple[Tensor, ...]:
        logits, zero_shot, then = answer.logits, answer.zero_shot_logits, answer.then
        self.is_pass, self.has_zero_shot = isinstance(logits, Pass), zero_shot is not None
        # A function of the method must not keep that alive.
        self.then = WeakMethod(then) if isinstance(then, MethodType) else lambda: then
        head = logits.affine if isinstance(logits, Pass) else logits
        assert head is not None
        entries = answer.support() if self.support and answer.support is not None else None
        self.has_support = entries is not None
        parts = () if entries is None else tuple(getattr(entries, one.name) for one in fields(entries))
        return head, answer.usable, *(() if zero_shot is None else (zero_shot,)), *parts, *answer.kept

    def unpacked(self, tensors: Sequence[Tensor], images: Tensor | None = None) -> Answer:
        """The answer that consists of these; ``images`` are to pass if it is one by a pass."""
        head, usable, *rest = tensors
        zero_shot = rest.pop(0) if self.has_zero_shot else None
        size = len(fields(Support)) if self.has_support else 0
        entries = Support(*rest[:size]) if size else None
        logits = Pass(images, head) if self.is_pass and images is not None else head
        support = None if entries is None else lambda: entries
        return Answer(logits, zero_shot, usable, support, self.then(), tuple(rest[size:]))


def _after_one_pass(steps: Answer | Steps, seen: Seen) -> Answer:
    assert not isinstance(steps, Answer)
    next(steps)
    try:
        steps.send(seen)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    raise RuntimeError("it asks for more passes than it has asked for before")


# -- parts of a step that one stream and several have in common -------------------------------------------


def receive(method: "Method", images: Tensor) -> tuple[Tensor, Tensor, torch.device]:
    """Finite images on the classifier's device; which of them may leave a trace; where they came from."""
    home, device = images.device, method.classifier.device
    if method.on_first_images is not None:  # to choose what can only be chosen for images of a known size
        method.on_first_images((images.shape[2], images.shape[3]))
    return finite_or_zero(images).to(device), finite_rows(images).to(device), home


def learning(method: "Method", images: int, tags: Tensor | None, work: Callable[[], _Value]) -> _Value:
    """``work`` on this many images, with room for them in the memories; its new states are stored."""
    make_room(method, images, None if tags is None else upload(tags, method.classifier.device))
    value = work()
    method.state.commit(vars(method))
    return value


def make_room(method: "Method", images: int, tags: Tensor | None = None) -> None:
    """For so many images, in the memories."""
    _admit(method, images)
    for memory in method.state.memories.values():
        memory.announce(tags)


def finish(method: "Method", answer: Answer, images: Tensor, home: torch.device, support: bool) -> Prediction:
    """What the caller gets; images without a finite answer get the zero-shot one and are counted."""
    assert isinstance(answer.logits, Tensor)
    usable = answer.usable & finite_rows(answer.logits)
    refused, zero_shot, clf = ~usable, answer.zero_shot_logits, method.classifier
    method._refused += refused.sum()

    def encoded() -> Tensor:
        with plain_numerics(), torch.no_grad():
            return finite_or_zero(clf.logits(clf.encode(images))).to(home)

    entries = answer.support().to(home) if support and answer.support is not None else None
    logits, fallback = answer.logits.to(home), refused.to(home)
    if zero_shot is None and usable.all():
        return Prediction(logits, encoded, fallback, entries)
    instead = encoded() if zero_shot is None else finite_or_zero(zero_shot).to(home)
    return Prediction(torch.where(fallback[:, None], instead, logits), instead, fallback, entries)


def joined(answers: list[Answer]) -> Answer:
    """One answer of those for consecutive images."""
    if len(answers) == 1:
        return answers[0]
    zero_shot = [answer.zero_shot_logits for answer in answers if answer.zero_shot_logits is not None]
    supports = [answer.support for answer in answers if answer.support is not None]
    return Answer(
        torch.cat([answer.logits for answer in answers]),  # type: ignore[misc]
        torch.cat(zero_shot) if len(zero_shot) == len(answers) else None,
        torch.cat([answer.usable for answer in answers]),
        (lambda: joined_support([one() for one in supports])) if len(supports) == len(answers) else None,
    )


def settings_of(method: "Method") -> tuple[Any, ...]:
    """What a step depends on beside tensors: a recording is valid for one of these."""
    parameters = tuple(getattr(method, name, None) for name in ("seed", *method.info.defaults))
    return *parameters, *(memory.recording_key() for memory in method.state.memories.values())


def _admit(method: "Method", images: int) -> int:
    """Make room for images in the memories; the number of the first one in the stream."""
    admitted = [memory.admit(images) for memory in method.state.memories.values()]
    return next((numbers.start for numbers in admitted if numbers is not None), method.images_seen)


# -- several streams --------------------------------------------------------------------------------------


def predict_together(
    parts: "Sequence[tuple[Method, Tensor]]",
    *,
    return_support: bool = False,
    batch_sizes: Sequence[int] = (),
    invariant: bool = False,
) -> list[Prediction | Exception]:
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
            shared.give(asking, may_raise=is_first)
            is_first = False
            for stream in streams:
                stream.advance()
        return [stream.prediction(return_support) for stream in streams]


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
        received = [receive(method, images) for method, images in parts]
    else:
        counts = [len(images) for _, images in parts]
        together = torch.cat([images for _, images in parts])
        for method, _ in parts[1:]:
            if method.on_first_images is not None:
                method.on_first_images((together.shape[2], together.shape[3]))
        images, usable, home = receive(parts[0][0], together)
        received = [(*own, home) for own in zip(images.split(counts), usable.split(counts), strict=True)]
    return [_Stream(method, *own, sizes, invariant) for (method, _), own in zip(parts, received, strict=True)]


class _Run:
    """One call of a method's ``adapt``, which may wait for a pass.

    Attributes:
        wanted: The pass.
        seen: What it has found, or why there is nothing.
        answer: What the method has come to; it may want a last pass.
    """

    def __init__(self, method: "Method", images: Tensor, usable: Tensor) -> None:
        self.method, self.images, self.usable = method, images, usable
        self.steps: Steps | None = None
        self.wanted: Pass | None = None
        self.seen: Seen | Exception | None = None
        self.answer: Answer | None = None
        self._is_new = True  # nothing has been learned

    def start(self) -> None:
        """Up to its first pass, before which nothing is learned; to the answer if ``adapt`` asks for none."""
        method = self.method
        if isgeneratorfunction(method.adapt):
            self.steps = method.adapt(self.images, self.usable)
            self.wanted = next(self.steps)
        else:
            make_room(self.method, len(self.images))
            self._learned(method._runner.answer(method, self.images, self.usable))
            method.state.commit(vars(method))

    @property
    def starts_afresh(self) -> bool:
        """Whether its first pass does not depend on what the stream has taught."""
        wanted, base = self.wanted, self.method.classifier.encoder.base
        return wanted is not None and wanted.is_of_rows_alone and _is_base(wanted.affine, base)

    def take(self, sizes: Sequence[int]) -> None:
        """Go on with what the pass has seen, up to the next one or to the answer.

        Args:
            sizes: Of the shared passes, the smallest first.
        """
        seen, self.seen = self.seen, None
        if isinstance(seen, Exception):
            raise seen
        assert seen is not None
        if self.answer is not None:
            self.answer, self.wanted = self.answer.given(seen), None
        elif self._is_new:
            recordings = recordings_of(self.method.classifier)
            self._is_new = False
            replayed = recordings.answer(self, seen, sizes)
            if replayed is not None:
                self._learned(replayed)
            else:
                make_room(self.method, len(self.images))
                self._send(seen)
                recordings.note(self)
        else:
            self._send(seen)
        self.method.state.commit(vars(self.method))

    def _send(self, seen: Seen) -> None:
        assert self.steps is not None
        try:
            self.wanted = self.steps.send(seen)
        except StopIteration as end:
            self._learned(end.value)

    def _learned(self, answer: Answer) -> None:
        self.answer = answer
        self.method.images_seen += len(self.images)
        self.wanted = answer.logits if isinstance(answer.logits, Pass) else None


class _Stream:
    """A method with its images, which go through ``adapt`` at once or one after the other."""

    def __init__(
        self,
        method: "Method",
        images: Tensor,
        usable: Tensor,
        home: torch.device,
        sizes: list[int],
        invariant: bool,
    ) -> None:
        self._method, self._images, self._home, self._sizes = method, images, home, sizes
        self._error: Exception | None = None  # that its method has raised
        self._most = max(len(images), 1) if method._most_images is None else method._most_images
        size = 1 if invariant else self._most
        whole = images, usable  # the same tensor, whose passes are prepared once
        pieces = zip(*(rows.split(size) for rows in whole), strict=True) if len(images) > size else [whole]
        self._runs = [_Run(method, *piece) for piece in pieces]
        if isgeneratorfunction(method.adapt):  # others learn at once: after the first passes of all
            with self._failing_alone():
                self._start()

    def _start(self) -> None:
        """The first run, and those behind it whose first passes depend on nothing that it learns."""
        for run in self._runs:
            run.start()
            if run is not self._runs[0] and not run.starts_afresh:
                run.steps = run.wanted = None
                break

    def asking(self) -> list[_Run]:
        """Those that wait for a pass."""
        waiting = [run for run in self._runs if run.wanted is not None and run.seen is None]
        return waiting if self._error is None else []

    def advance(self) -> None:
        """Go on as far as possible."""
        waiting = 0  # images whose answer wants a last pass
        with self._failing_alone():
            for run in self._runs if self._error is None else ():
                if run.answer is None:
                    if waiting and waiting + len(run.images) > self._most:
                        return  # what is learned with these answers comes first
                    if run.steps is None:
                        run.start()
                if run.seen is not None:
                    run.take(self._sizes)
                if run.answer is None:
                    return
                waiting += len(run.images) if run.wanted is not None else 0

    def prediction(self, support: bool) -> Prediction | Exception:
        """That of all images, or what its method has raised."""
        self.advance()
        method = self._method
        with self._failing_alone():
            if self._error is None:
                answer = joined([run.answer for run in self._runs if run.answer is not None])
                return finish(method, answer, self._images, self._home, support and method.retrieves)
        assert self._error is not None
        return self._error

    @contextmanager
    def _failing_alone(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._error = error


# -- passes that streams share ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Segment:
    """Some images of what a run wants to pass, in a chunk."""

    run: _Run
    wanted: Pass
    images: slice  # of the pass
    rows: slice  # of the chunk

    @property
    def classifier(self) -> ZeroShotClassifier:
        return self.run.method.classifier

    @property
    def affine(self) -> Tensor:
        """The norm parameters of these images."""
        affine = self.classifier.encoder.base if self.wanted.affine is None else self.wanted.affine
        number = self.rows.stop - self.rows.start
        return affine[self.images] if affine.ndim == 2 else affine.expand(number, -1)


class _SharedPasses:
    """Gives what several streams want.

    Args:
        sizes: That chunks of images may have, the smallest first; without any, all images are one chunk.
    """

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._prepared: dict[tuple[Any, ...], tuple[list[Tensor], Tensor]] = {}

    def give(self, runs: Sequence[_Run], *, may_raise: bool) -> None:
        """Let each run see what it wants, or why there is nothing.

        Args:
            runs: That wait for a pass.
            may_raise: Whether to raise what is raised by a shared pass.
        """
        alike: dict[tuple[Any, ...], list[_Run]] = {}
        for run in runs:
            wanted = _wanted(run)
            if wanted.is_shareable:
                shape = wanted.images.shape[1:], wanted.images.dtype
                alike.setdefault((wanted.loss is None, wanted.of == "features", shape), []).append(run)
            else:
                _see_alone(run)
        for same in alike.values():
            try:
                self._share(same)
            except Exception as error:
                if may_raise:
                    raise
                for run in same:
                    run.seen = error

    def _share(self, runs: Sequence[_Run]) -> None:
        parts: dict[_Run, list[Seen]] = {run: [] for run in runs}
        for chunk in self._chunks(runs):
            for segment, seen in zip(chunk, _seen(self._images(chunk), chunk), strict=True):
                parts[segment.run].append(seen)
        _see_what_was_asked({run: part[0] if len(part) == 1 else _cat(part) for run, part in parts.items()})

    def _chunks(self, runs: Sequence[_Run]) -> list[list[_Segment]]:
        """Each of an allowed size, unless the loss of a batch is larger."""
        most = self._sizes[-1] if self._sizes else sum(len(run.images) for run in runs)
        chunks: list[list[_Segment]] = [[]]
        filled = 0
        for run in runs:
            wanted, start = _wanted(run), 0
            count = len(wanted.images)
            while start < count:
                whole = not wanted.is_of_rows_alone
                if filled and (filled >= most or (whole and filled + count > most)):
                    chunks.append([])
                    filled = 0
                end = count if whole else min(count, start + most - filled)
                rows = slice(filled, filled + end - start)
                chunks[-1].append(_Segment(run, wanted, slice(start, end), rows))
                start, filled = end, rows.stop
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


def _see_alone(run: _Run) -> None:
    try:
        run.seen = give(run.method.classifier, _wanted(run))
    except Exception as error:
        run.seen = error


def _filled_up(tensor: Tensor, size: int) -> Tensor:
    missing = size - len(tensor)
    return F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, missing)) if missing else tensor


def _is_base(affine: Tensor | None, base: Tensor) -> bool:
    return affine is None or affine is base


def _seen(images: Tensor, chunk: list[_Segment]) -> list[Seen]:
    """What each segment has seen; a gradient is that of each image, of its own loss or of its batch's."""
    first, base = chunk[0], chunk[0].classifier.encoder.base
    rows = None  # norm parameters of all images, unless they are the pretrained ones
    if not all(_is_base(one.wanted.affine, base) for one in chunk):
        filling = base.expand(len(images) - chunk[-1].rows.stop, -1)
        rows = torch.cat([*(one.affine for one in chunk), filling])
    kinds = {(id(one.classifier), one.wanted.loss, one.wanted.of) for one in chunk}
    loss, of = first.wanted.loss, first.wanted.of
    alone = len(kinds) == 1 and all(one.wanted.is_of_rows_alone for one in chunk)
    if alone and not isinstance(loss, MethodType):  # one of a method would keep that alive
        wanted = Pass(images, rows, loss, of=of, each=loss is not None)
        seen = recordings_of(first.classifier).passes.give(wanted)
        return [replace(seen, images=None).of(one.rows) for one in chunk]  # type: ignore[arg-type]
    return _joint(images, chunk, rows)


def _joint(images: Tensor, chunk: list[_Segment], rows: Tensor | None) -> list[Seen]:
    """For different classifiers, or losses that are one of the batch or need more than logits."""
    classifiers = {id(one.classifier): one.classifier for one in chunk if one.wanted.of == "logits"}
    classifier, normalize = chunk[0].classifier, chunk[0].wanted.of != "features"
    if chunk[0].wanted.loss is None:
        embeddings = classifier.encode(images, rows, normalize=normalize)
        logits = {key: one.logits(embeddings) for key, one in classifiers.items()}
        return [Seen(*_rows_of(one, embeddings, logits)) for one in chunk]
    start = classifier.encoder.base.expand(len(images), -1) if rows is None else rows
    known: dict[Hashable, tuple[Tensor, Tensor]] = {}

    def losses_of(one: _Segment) -> tuple[Tensor, Tensor]:
        """Those that depend on an image alone are computed for all at once, and then their bits do not."""
        of = logits[id(one.classifier)] if one.wanted.is_of_rows else embeddings
        if not one.wanted.is_of_rows_alone:
            return loss_of(one.wanted, of[one.rows])
        key = id(one.classifier), one.wanted.loss
        if key not in known:
            known[key] = loss_of(one.wanted, of)
        losses, counted = known[key]
        return losses[one.rows], counted if counted is None else counted[one.rows]

    with torch.enable_grad():
        leaf = start.detach().requires_grad_()
        embeddings = classifier.encode(images, leaf, normalize=normalize)
        logits = {key: one.logits(embeddings) for key, one in classifiers.items()}
        found = [losses_of(one) for one in chunk]
        gradients = classifier.gradient(torch.stack([losses.sum() for losses, _ in found]).sum(), leaf)
    embeddings = embeddings.detach()
    logits = {key: value.detach() for key, value in logits.items()}
    return [
        Seen(*_rows_of(one, embeddings, logits), losses.detach(), gradients[one.rows], counted)
        for one, (losses, counted) in zip(chunk, found, strict=True)
    ]


def _rows_of(one: _Segment, embeddings: Tensor, logits: dict[int, Tensor]) -> tuple[Tensor, Any]:
    own = logits[id(one.classifier)][one.rows] if one.wanted.of == "logits" else None
    return embeddings[one.rows], own


def _cat(parts: list[Seen]) -> Seen:
    """That of consecutive images."""
    columns = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
    whole = {name: None if found[0] is None else torch.cat(found) for name, found in columns.items()}
    return Seen(**whole)  # type: ignore[arg-type]


def _see_what_was_asked(found: dict[_Run, Seen]) -> None:
    """Of what each image has shown, what was asked for; it passes alone if that spoils a batch's gradient."""
    finite: dict[_Run, Tensor] = {}
    for run, seen in found.items():
        wanted = _wanted(run)
        if wanted.usable is not None and (wanted.loss is None or wanted.each):
            seen = replace(seen, usable=wanted.usable & finite_rows(seen.embeddings))
        elif wanted.loss is None or wanted.each:
            pass
        elif wanted.is_of_rows:
            seen = mean_of_rows(wanted, seen)
        else:
            assert wanted.usable is not None
            usable = wanted.usable & finite_rows(seen.embeddings) if wanted.repeat else wanted.usable
            seen = replace(seen, losses=None, gradient=seen.gradient.sum(0), usable=usable)  # type: ignore[arg-type]
            if wanted.repeat:
                finite[run] = seen.gradient.isfinite().all()
        run.seen = replace(seen, images=wanted.images)
    if finite:
        for run, is_finite in zip(finite, torch.stack([*finite.values()]).tolist(), strict=True):
            if not is_finite:
                _see_alone(run)


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
        self.passes = RecordedPasses(classifier, self._recorder)
        # the least recently used one first; by their ids, as nothing here keeps a method alive
        self._answers: OrderedDict[int, tuple[_Step, Recorded]] = OrderedDict()

    def note(self, run: _Run) -> None:
        """Remember whether a method comes to an answer after its first pass."""
        if not run.method._runner.records_steps(run.method):
            return
        answer, (step, _) = run.answer, self._of(run.method)
        last = None if answer is None else answer.logits
        if isinstance(last, Pass):
            plain = last.loss is None and last.usable is None and last.of == "logits"
            own = last.affine is not None and last.affine.ndim == 2
            step.comes_to_an_end = plain and own and last.images is run.images
        else:
            step.comes_to_an_end = last is not None

    def answer(self, run: _Run, seen: Seen, sizes: Sequence[int]) -> Answer | None:
        """What a method makes of a first pass, from a graph; None if it is not known to come to an answer."""
        method, wanted = run.method, _wanted(run)
        if (
            not method._runner.records_steps(method)
            or not run.starts_afresh
            or (wanted.loss and not wanted.each)
        ):
            return None
        step, recorded = self._of(method)
        if not step.comes_to_an_end:
            return None
        count = len(run.images)
        size = next((size for size in (*_SIZES, *sizes) if size >= count), count)
        start, device = _admit(method, count), run.usable.device
        known = {name: value for name, value in vars(seen).items() if value is not None and name != "images"}
        step.seen = tuple(known)
        tensors = recorded(
            *(_filled_up(tensor, size) for tensor in (run.images, run.usable)),
            torch.full((size,), -1, device=device),
            torch.arange(start, start + size, device=device).clamp_max(start + count - 1),
            *(_filled_up(tensor, size) for tensor in known.values()),
            settings=settings_of(method),
        )
        own = [tensor[:count] if tensor.ndim and len(tensor) == size else tensor for tensor in tensors]
        return step.unpacked(own, run.images)

    def _of(self, method: "Method") -> tuple[_Step, Recorded]:
        known = self._answers.get(id(method))
        if known is None or known[0].method() is not method:
            step = _Step(ref(method), support=True)
            known = self._answers[id(method)] = step, self._recorder.record(step, calls=_CALLS_TO_RECORD)
        self._answers.move_to_end(id(method))
        while len(self._answers) > _MOST_METHODS:
            self._answers.popitem(last=False)
        return known


_RECORDINGS: WeakKeyDictionary[ZeroShotClassifier, _Recordings] = WeakKeyDictionary()


def recordings_of(classifier: ZeroShotClassifier) -> _Recordings:
    """Those of its streams."""
    if classifier not in _RECORDINGS:
        _RECORDINGS[classifier] = _Recordings(classifier)
    return _RECORDINGS[classifier]
