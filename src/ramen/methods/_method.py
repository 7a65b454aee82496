"""What every method is: the contract between methods and those who call them, and what these get."""

import copy
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import torch
from torch import Tensor, nn

from ramen.encoder.encoder import AffineEncoder
from ramen.kernels.graphs import CALLS_TO_RECORD
from ramen.memory.base import StreamMemory
from ramen.methods import _saved_state
from ramen.methods._passes import Answer, Steps, Support, joined_support
from ramen.methods._registry import (
    AUTO,
    Field,
    MethodInfo,
    Parameters,
    create,
    field,
    fields_of,
    nearest_published,
)
from ramen.methods._runner import Runner
from ramen.methods._state import DeclaredState
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.devices import upload
from ramen.utils.distributed import Group, Peers, check_same
from ramen.utils.numerics import finite_or_zero, finite_rows, plain_numerics


@dataclass(eq=False, repr=False)
class Prediction:
    """The answer for a batch, on the device of the images.

    Attributes:
        logits: The method's prediction, ``(B, C)`` in fp32 (fp64 for a double encoder).
        zero_shot: The classifier's logits without adaptation, or a function that computes them.
        fallback: True for images that the method could not use (a non-finite pixel, embedding, gradient or
            logit); their ``logits`` are zero-shot.
        support: The entries behind each answer, if asked for.
    """

    logits: Tensor
    zero_shot: Tensor | Callable[[], Tensor]
    fallback: Tensor
    support: Support | None = None

    @property
    def labels(self) -> Tensor:
        """The predicted classes ``(B,)``."""
        return self.logits.argmax(1)

    @cached_property
    def zero_shot_logits(self) -> Tensor:
        """The classifier's logits without adaptation.

        If the method has no use for them, asking costs a forward pass, and the images are kept until then.
        """
        return self.zero_shot if isinstance(self.zero_shot, Tensor) else self.zero_shot()

    def of(self, images: slice) -> "Prediction":
        """The answer for some images of the batch."""
        support = self.support
        if support is not None:
            support = Support(**{name: value[images] for name, value in vars(support).items()})
        return Prediction(self.logits[images], self.zero_shot_logits[images], self.fallback[images], support)

    def __repr__(self) -> str:
        return f"Prediction(labels={self.labels.tolist()}, fallback={int(self.fallback.sum())})"


_Memory = TypeVar("_Memory", bound=StreamMemory)
_Value = TypeVar("_Value")
CONTENT = "content."  # before the names of what a saved state holds of the stream
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Method(DeclaredState, ABC):
    """A test-time adaptation method on a zero-shot classifier.

    One object is one stream. It serves one thread at a time: a second one that calls it meanwhile gets a
    RuntimeError, and nothing happens to the stream. ``ramen.Predictor`` serves many threads.

    Args:
        classifier: What it adapts; never changed.
        parameters: Values of the class's fields, by name.
        group: The ``torch.distributed`` process group that shares the stream: all its processes call
            ``predict`` in step, each with its own part of the batch, which may be empty. The global batch is
            that of the first process, then that of the second, and so on. None: this process alone.

    Attributes:
        images_seen: How many images all processes have offered so far.
        peers: The processes of the group; None without one.
    """

    info: ClassVar[MethodInfo]
    fields: ClassVar[Mapping[str, Field]] = {}  # the parameters that the class and its bases declare
    # the parameters that a saved state depends on, beside the classifier and the seed
    state_parameters: ClassVar[tuple[str, ...]] = ()
    # those of them that states of earlier versions do not name, with the values that these had
    later_parameters: ClassVar[Mapping[str, Any]] = {}
    # whether answers come with the entries behind them, if asked for
    retrieves: ClassVar[bool] = False
    # whether ``adapt`` does the same operations for every batch of a size, so that a CUDA graph may hold it:
    # no value of a tensor decides what the host does (``ramen.kernels.graphs.holds`` excepted), and
    # whatever is kept is a declared state or memory
    recordable: ClassVar[bool] = False
    # whether ``adapt`` learns from the images of all processes of a group, so that all of them learn the same
    joins_groups: ClassVar[bool] = False

    seed: int = field(0, ge=0, doc="Decides everything random.")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.fields = fields_of(cls)
        if "state_parameters" not in vars(cls):
            saved = [name for name, one in cls.fields.items() if one.saved]
            cls.state_parameters = tuple(dict.fromkeys([*cls.state_parameters, *saved]))
        if "later_parameters" not in vars(cls):
            younger = {name: one.before for name, one in cls.fields.items() if one.is_younger}
            cls.later_parameters = {**cls.later_parameters, **younger}

    def __init__(self, classifier: ZeroShotClassifier, *, group: Group = None, **parameters: Any) -> None:
        super().__init__()
        self.classifier = check_classifier(classifier)
        if group is not None and not self.joins_groups:
            raise ValueError(f"group must be None: {type(self).__name__} has no way to share a stream")
        self.peers = None if group is None else Peers(group)
        self._same_as_peers = group is None
        self.chosen: dict[str, str] = {}  # why, for each parameter that the method chose itself
        self._set_fields(parameters)
        # given the size of the first images, for what can only be chosen then
        self.on_first_images: Callable[[tuple[int, int]], None] | None = None
        self.images_seen = 0
        self.one_caller = _OneCaller()
        self._refused = torch.zeros((), dtype=torch.int64, device=classifier.device)
        self._recorder = classifier.recorder()
        self._records = self._recorder.records_on(classifier.device)
        self._runner = Runner(self, self._recorder)
        self.setup()

    def _set_fields(self, given: Mapping[str, Any]) -> None:
        """Check the parameters and make attributes of them."""
        if unknown := given.keys() - self.fields.keys():
            names = ", ".join(map(repr, sorted(unknown)))
            raise TypeError(
                f"{type(self).__name__} has no parameter {names}, it has {', '.join(self.fields)}"
            )
        for name, one in self.fields.items():
            value = one.checked(name, given.get(name, one.default))
            if one.published is not None and value == AUTO:
                value, self.chosen[name] = nearest_published(one.published, self.classifier.num_classes)
            if one.check is not None:
                one.check(self, value)
            setattr(self, name, value)

    # -- to be written by a method ------------------------------------------------------------------

    def setup(self) -> None:
        """Make what the method needs: its states and memories, from parameters that are checked and set."""

    @abstractmethod
    def adapt(self, images: Tensor, usable: Tensor) -> Answer | Steps:
        """Answer a batch and learn from it.

        A generator yields each ``Pass`` that it needs, is sent what that has ``Seen``, and changes nothing
        before its first pass. A plain function calls the classifier, without gradients; if it needs them it
        switches them on. New values of a declared state are assigned to its attribute. In a group, an answer
        for the images of all processes will do: each takes its own.

        Args:
            images: Finite images on the classifier's device.
            usable: False for images that came with non-finite pixels and must leave no trace.
        """

    def passes(self) -> tuple[int, int]:
        """Forward and backward passes per image, if parameters decide that; by default the record's."""
        return self.info.forwards, self.info.backwards

    @property
    def most_images(self) -> int | None:
        """How many images ``adapt`` takes at most; ``predict`` cuts larger batches."""
        return None

    @property
    def batch_dependent(self) -> bool:
        """Whether batch mates change an answer, if parameters decide that; by default the record's."""
        return self.info.batch_dependent

    # -- to be used by a method ---------------------------------------------------------------------

    def replace_memory(self, memory: _Memory, prefix: str = "") -> _Memory:
        """Register ``memory`` in place of the one that has this prefix."""
        del self.memories[prefix]
        self._runner = Runner(self, self._recorder)  # what the old one has recorded holds the old addresses
        return self.add_memory(memory, prefix)

    def generator(self, device: str | torch.device = "cpu", *, place: int | None = None) -> torch.Generator:
        """Random numbers decided by the seed and the place in the stream alone.

        The place is the number of images seen so far, for what the coming batch needs; a method that counts
        differently, such as only images that it could use, gives its own.
        """
        digest = sha256(f"{self.seed} {self.images_seen if place is None else place}".encode()).digest()
        return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8]) >> 1)

    def together(self, value: _Value, smallest: Callable[[_Value], float] | None = None) -> _Value:
        """One value for all processes of a group, for what each has chosen itself; JSON can hold it.

        Args:
            value: That of this process.
            smallest: Take the first one for which this is smallest; that of the first process if not given.
        """
        if self.peers is None:
            return value
        values: list[_Value] = self.peers.values(value, "agreeing on parameters")
        return values[0] if smallest is None else min(values, key=smallest)

    def whole(self, rows: Tensor) -> Tensor:
        """One row per image of the global batch, of those for this process's images."""
        if self.peers is None:
            return rows
        return self.peers.gather(rows, self.peers.sizes, "gathering what the images have shown")

    def whole_with_gradients(self, rows: Tensor) -> Tensor:
        """The same as ``whole``, with gradients to the rows of this process.

        If every process differentiates a loss of the global batch, the sum of their gradients is its own.
        """
        if self.peers is None:
            return rows
        every, own = self.whole(rows.detach()), self.peers.own
        return torch.cat([every[: own.start], rows, every[own.stop :]])

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum over the processes of a group, with the same bits in each of them."""
        return tensor if self.peers is None else self.peers.total(tensor, "adding up")

    def averaged(self, tensor: Tensor) -> Tensor:
        """The mean over the processes of a group, for what all of them have computed of the same images.

        They then continue with the same bits, also if they have different devices.
        """
        return tensor if self.peers is None else self.summed(tensor) / self.peers.size

    # -- what callers use ---------------------------------------------------------------------------

    def predict(
        self, images: Tensor, *, tags: Tensor | None = None, return_support: bool = False
    ) -> Prediction:
        """Answer a batch of preprocessed images ``(B, 3, H, W)`` and adapt.

        Args:
            images: Floats; on any device. In a group, this process's part of the batch, which may be empty.
            tags: One integer per image, stored with it for analyses and never seen by the method.
            return_support: Also return which entries were used, with weights and tags.
        """
        images = self.classifier.check_images(images, may_be_empty=self.peers is not None)
        tags = _check_tags(tags, len(images))
        if return_support and not self.retrieves:
            raise ValueError(f"return_support: method {self.info.name!r} retrieves no entries")
        pieces = self._pieces(len(images))
        if len(pieces) > 1:
            own = [None if tags is None else tags[piece] for piece in pieces]
            with self.one_caller:
                return _joined(
                    [
                        self.predict(images[piece], tags=tag, return_support=return_support)
                        for piece, tag in zip(pieces, own, strict=True)
                    ]
                )
        with self.one_caller, plain_numerics(), torch.no_grad():
            total = self._begin(len(images))
            images, usable, home = self.receive(images)
            if self._records and self.records_steps:
                answer = self._runner.step(self, images, usable, tags, return_support)
            else:
                answer = self.learning(len(images), tags, lambda: self._runner.answer(self, images, usable))
            self.images_seen += total
            return self.finish(answer, images, home, return_support)

    def _pieces(self, images: int) -> list[slice]:
        """The parts of a batch that one step each takes; in a group, of the whole batch."""
        most = self.most_images
        if most is None:
            return [slice(0, images)]
        first, total = 0, images
        if self.peers is not None:
            self.peers.begin(images)
            first, total = self.peers.own.start, sum(self.peers.sizes)
        ends = [max(0, min(start - first, images)) for start in range(0, total + most, most)]
        return [slice(start, end) for start, end in pairwise(ends)]

    def _begin(self, images: int) -> int:
        """How many images the batch has, in all processes of the group."""
        if self.peers is None:
            return images
        if not self._same_as_peers:
            check_same(
                self.peers, {"method": self.info.name, **self.parameters}, self.classifier.fingerprint()
            )
            self._same_as_peers = True
        self.peers.begin(images)
        return sum(self.peers.sizes)

    # -- parts of predict, for steps of several streams ---------------------------------------------

    def receive(self, images: Tensor) -> tuple[Tensor, Tensor, torch.device]:
        """Finite images on the classifier's device; which of them may leave a trace; where they came from."""
        home, device = images.device, self.classifier.device
        self._see(images)
        return finite_or_zero(images).to(device), finite_rows(images).to(device), home

    def _see(self, images: Tensor) -> None:
        """Choose what can only be chosen for images of a known size."""
        if self.on_first_images is not None:
            self.on_first_images((images.shape[2], images.shape[3]))

    def learning(self, images: int, tags: Tensor | None, work: Callable[[], _Value]) -> _Value:
        """``work`` on so many images, with room for them in the memories; its new states are stored."""
        for memory in self.memories.values():
            memory.admit(images)
            memory.announce(None if tags is None else upload(tags, self.classifier.device))
        value = work()
        if self._states:
            self.store_states()
        return value

    def finish(self, answer: Answer, images: Tensor, home: torch.device, support: bool) -> Prediction:
        """What the caller gets; images without a finite answer get the zero-shot one and are counted."""
        assert isinstance(answer.logits, Tensor)
        usable = answer.usable & finite_rows(answer.logits)
        refused, zero_shot, clf = ~usable, answer.zero_shot_logits, self.classifier
        self._refused += refused.sum()

        @torch.no_grad()
        @plain_numerics()
        def encoded() -> Tensor:
            return finite_or_zero(clf.logits(clf.encode(images))).to(home)

        entries = answer.support().to(home) if support and answer.support is not None else None
        logits, fallback = answer.logits.to(home), refused.to(home)
        if zero_shot is None and usable.all():
            return Prediction(logits, encoded, fallback, entries)
        instead = encoded() if zero_shot is None else finite_or_zero(zero_shot).to(home)
        return Prediction(torch.where(fallback[:, None], instead, logits), instead, fallback, entries)

    @property
    def parameters(self) -> Parameters:
        """What it runs with; ``parameters.why`` has the reasons for what it chose itself."""
        return Parameters({n: getattr(self, n, v) for n, v in self.info.defaults.items()}, self.chosen)

    @property
    def images_refused(self) -> int:
        """How many images were answered zero-shot because something about them was not finite.

        In a group, those of this process.
        """
        return int(self._refused)

    @plain_numerics()
    def reset(self) -> None:
        """Back to fresh."""
        with self.one_caller:
            self.clear()
            self.images_seen = 0
            self._refused.zero_()

    # -- recorded steps -----------------------------------------------------------------------------

    @property
    def records_steps(self) -> bool:
        """Whether a CUDA graph may hold a whole step, with all that it does to state and memories."""
        device = self.classifier.device
        if self.peers is not None:  # what the host exchanges cannot be part of a graph
            return False
        return self.recordable and all(memory.recordable_on(device) for memory in self.memories.values())

    @plain_numerics()
    def warm_up(self, *batch_sizes: int) -> None:
        """Answer blank batches of these sizes until nothing is left to compile or record, then forget them.

        To be called before traffic. Memories allocate all that they will ever need.
        """
        sizes = [checks.integer("batch_sizes", size, 1) for size in batch_sizes]
        if self.classifier.image_size is None:
            raise ValueError("warm_up: the classifier does not know its images' size; give it a preprocess")
        shapes = [(size, 3, *self.classifier.image_size) for size in sizes]
        # Images that may not be stored leave recorded states and memories at their addresses.
        value = torch.nan if self.records_steps else 0.0
        with self._rehearsal():
            for shape in shapes:
                for _ in range(CALLS_TO_RECORD):
                    self.predict(torch.full(shape, value, device=self.classifier.device))

    @contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """A block that leaves no trace."""
        saved = None if self.records_steps else self.state_dict()
        counts = self.images_seen, self._refused.clone()
        with ExitStack() as stack:
            for memory in self.memories.values() if saved is None else ():
                stack.enter_context(memory.rehearsal())
            try:
                yield
            finally:
                if saved is not None:
                    self.load_state_dict(saved)
                self.images_seen = counts[0]
                self._refused.copy_(counts[1])

    # -- state --------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        return {
            "version": _saved_state.VERSION,
            "method": self.info.name,
            "parameters": {"seed": self.seed} | {name: getattr(self, name) for name in self.state_parameters},
            "classifier": self.classifier.fingerprint(),
        }

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a method is not pickled: save what it has learned with method.save(path), and elsewhere "
            "load it with ramen.create(name, classifier).load(path)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue, as tensors; safetensors and ``torch.save`` take it as it is."""
        with self.one_caller:
            content = self.content()
            named = {f"{CONTENT}{name}": tensor for name, tensor in content.items()}
            return {**self.state_identity(), **self.state_counters(), **named}

    def state_identity(self) -> dict[str, Tensor]:
        """The part of a saved state that says what it belongs to."""
        return {
            "header": _saved_state.write_header(self._identity()),
            "class_embeddings": self.classifier.class_embeddings.clone(),
        }

    def state_counters(self) -> dict[str, Tensor]:
        """The part of a saved state that says how many images it has seen."""
        return {
            "images_seen": torch.tensor(self.images_seen, device="cpu"),
            "images_refused": self._refused.clone(),
        }

    @plain_numerics()
    def load_state_dict(self, state: Mapping[str, Tensor], *, salvage: bool = False) -> None:
        """Continue where ``state`` was taken; a ValueError says what differs and changes nothing.

        Args:
            state: What ``state_dict`` returned.
            salvage: Entries may be missing from its memories: continue with the others.
        """
        with self.one_caller:
            undo = self.adopt(_saved_state.saved_parameters(state))
            try:
                self._load(state, salvage)
            except BaseException:
                undo()
                raise

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, completely or not at all, with a checksum per tensor.

        The file is in the format of safetensors. In a group of processes the first one writes it; all call
        this.
        """
        state = self.state_dict()
        if self.peers is None:
            _saved_state.write_file(path, state)
            return
        refused = sum(self.peers.numbers(self.images_refused, "saving"))
        state["images_refused"] = torch.tensor(refused, device="cpu")

        def write() -> None:
            if self.peers is not None and self.peers.rank == 0:
                _saved_state.write_file(path, state)

        self.peers.attempt(write, "saving")

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue where ``save`` wrote ``path``; a ValueError names what is wrong and changes nothing.

        A file of one process or of many will do, in one process or in many.
        """

        def read() -> dict[str, Tensor]:
            state = _saved_state.read_file(path)
            if self.peers is not None and self.peers.rank:  # the first one counts what was refused before
                state["images_refused"] = torch.zeros((), dtype=torch.int64, device="cpu")
            return state

        self.load_state_dict(read() if self.peers is None else self.peers.attempt(read, "reading the state"))

    def adopt(self, saved: Mapping[str, Any]) -> Callable[[], None]:
        """For methods that choose parameters: use those of a state before it is compared and loaded.

        Args:
            saved: The parameters that the state names; empty if it is damaged.

        Returns:
            What takes it back, for a state that cannot be loaded.
        """
        return lambda: None

    def upgraded(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a saved state by their names today, with those that are younger than it."""
        return {**self.later_parameters, **saved}

    def _load(self, state: Mapping[str, Tensor], salvage: bool) -> None:
        images_seen, refused = _saved_state.check(
            state, self._identity(), self.classifier.class_embeddings, self.upgraded
        )
        content = _content_of(state)
        self.restore(self.salvage(content) if salvage else content)
        self.images_seen = images_seen
        self._refused.fill_(refused)


def _joined(parts: Sequence[Prediction]) -> Prediction:
    """One prediction of those for consecutive images."""
    supports = [part.support for part in parts]
    return Prediction(
        torch.cat([part.logits for part in parts]),
        lambda: torch.cat([part.zero_shot_logits for part in parts]),
        torch.cat([part.fallback for part in parts]),
        joined_support([one for one in supports if one is not None]) if all(supports) else None,
    )


def _content_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(CONTENT): state[name] for name in state if name.startswith(CONTENT)}


class _OneCaller:
    """A ``with`` block that one thread at a time may be in; it may enter it again.

    Any other thread gets a RuntimeError instead of a mix-up.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "this method is being called by another thread, and serves one at a time: use a lock, one "
                "method per thread, or ramen.Predictor, which serves many threads"
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["_OneCaller"], tuple[()]]:
        return _OneCaller, ()  # a copy of a method is a method of its own; locks themselves cannot be copied


def check_classifier(classifier: object) -> ZeroShotClassifier:
    """``classifier``, if it is one; for methods that need it before they are constructed."""
    if not isinstance(classifier, ZeroShotClassifier):
        raise TypeError(f"classifier must be a ZeroShotClassifier, got {type(classifier).__name__}")
    return classifier


def _check_tags(tags: object, batch: int) -> Tensor | None:
    if tags is None:
        return None
    try:
        given = torch.as_tensor(tags)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"tags must be {batch} integers, got {type(tags).__name__}: {error}") from error
    if given.dtype not in _INTEGERS or tuple(given.shape) != (batch,):
        raise ValueError(f"tags must be {batch} integers, got {given.dtype} of shape {tuple(given.shape)}")
    return given.to(torch.int64)


# -- a method as a module ---------------------------------------------------------------------------------


def adapt(
    model: ZeroShotClassifier | Method | nn.Module | AffineEncoder,
    method: str | None = None,
    *,
    class_embeddings: Tensor | None = None,
    logit_scale: float | None = None,
    classes: Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    **parameters: Any,
) -> "AdaptedModule":
    """A module that classifies batches and adapts to them, to stand where a model stood in a loop.

    >>> import torch
    >>> import ramen
    >>> encoder = ramen.testing.small_tower("vit")
    >>> texts = torch.eye(3, 16)
    >>> adapted = ramen.adapt(encoder, "tent", class_embeddings=texts, lr=1e-4)
    >>> adapted(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 3])

    Args:
        model: A ``ZeroShotClassifier``; a classification network, as for its ``from_classifier``; an image
            encoder, with ``class_embeddings``; or a method that was created before, which then takes neither
            ``method`` nor parameters.
        method: The name of a method, "ramen" if not given; ``ramen.list_methods()`` has them all.
        class_embeddings: For an encoder: one vector per class, as for ``ZeroShotClassifier``.
        logit_scale: For an encoder: logits are this times the cosine similarity; 100 if not given. For a
            network: as for ``from_classifier``.
        classes: For an encoder or a network: the names of the classes.
        image_size: For a network that does not know it: height and width of the images, or one number.
        parameters: Of the method, as for ``ramen.create``.
    """
    parts = {
        "class_embeddings": class_embeddings,
        "logit_scale": logit_scale,
        "classes": classes,
        "image_size": image_size,
    }
    parts = {name: value for name, value in parts.items() if value is not None}
    if isinstance(model, Method):
        given = [*(["method"] if method is not None else []), *parts, *parameters]
        if given:
            raise TypeError(f"{', '.join(given)}: the method that was given as model has its own")
        return AdaptedModule(model)
    return AdaptedModule(create(method or "ramen", _as_classifier(model, parts), **parameters))


def _as_classifier(model: object, parts: Mapping[str, Any]) -> ZeroShotClassifier:
    """The classifier that a model is, or becomes. Other kinds of models belong here."""
    if isinstance(model, ZeroShotClassifier):
        if parts:
            raise TypeError(f"{', '.join(parts)}: the ZeroShotClassifier that was given as model has its own")
        return model
    if not isinstance(model, nn.Module | AffineEncoder):
        raise TypeError(
            "model must be a ZeroShotClassifier, a method, a classification network or an image encoder, "
            f"got {type(model).__name__}"
        )
    if "class_embeddings" in parts:
        if "image_size" in parts:
            raise TypeError("image_size: only for a classification network, not with class_embeddings")
        return ZeroShotClassifier(model, **parts)
    if isinstance(model, AffineEncoder):
        raise TypeError("class_embeddings must be given with an AffineEncoder: one vector per class")
    return ZeroShotClassifier.from_classifier(model, **parts)


class AdaptedModule(nn.Module):
    """A method behind the interface of an ``nn.Module``; made by ``ramen.adapt``.

    Calling it is ``method.predict``: it answers the batch and learns from it, in ``train`` and in ``eval``
    mode alike, and the logits carry no gradient, with or without ``torch.no_grad``.

    It has no parameters and no buffers: nothing of the wrapped model is ever changed. ``state_dict`` has what
    was learned from the stream (the method's own state, tensors only) and not the weights of the model, which
    are where they came from; ``load_state_dict`` continues bit for bit on a CPU, and refuses a state of
    another model, method or class list. It stays on its classifier's device and in its dtype: ``to``,
    ``cuda`` and ``half`` raise a RuntimeError if they would move it.

    Args:
        method: What answers.

    Attributes:
        method: The same.
        last: The whole prediction of the last call, with zero-shot logits; None before the first.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        self.last: Prediction | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(B, C)`` of preprocessed images ``(B, 3, H, W)``; the method learns from them."""
        self.last = self.method.predict(images)
        return self.last.logits

    def reset(self) -> None:
        """Forget what was learned."""
        self.method.reset()
        self.last = None

    def extra_repr(self) -> str:
        """The method, for ``repr``."""
        return f"{self.method.info.name}, {self.method.classifier!r}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, tensor in self.method.state_dict().items():
            destination[f"{prefix}{name}"] = tensor

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {name.removeprefix(prefix): state_dict[name] for name in state_dict if name.startswith(prefix)}
        if not own:
            missing_keys.append(f"{prefix}header")
            return
        try:
            self.method.load_state_dict(own)
        except ValueError as error:
            error_msgs.append(str(error))
        self.last = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "AdaptedModule":
        classifier = self.method.classifier
        here = torch.empty(0, device=classifier.device, dtype=classifier.dtype)
        there = fn(here)
        if (there.device, there.dtype) != (here.device, here.dtype):
            raise RuntimeError(
                f"an adapted module stays on its classifier's device and in its dtype ({here.device}, "
                f"{here.dtype}), cannot become {there.device}, {there.dtype}: make the classifier there "
                "(device=..., dtype=...), then adapt it"
            )
        return self
