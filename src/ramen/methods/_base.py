"""What every method is: the contract between methods and those who call them.

A method is a subclass of ``Method`` with one function to write, ``adapt``: it takes a batch of images and
returns logits. ``predict`` around it checks the input, keeps non-finite images away from the method's state,
answers those zero-shot, and counts. A method declares its state once, with ``add_state`` and ``add_memory``,
and can then be reset, saved, restored and measured. ``ramen.testing.check_method`` runs a method through the
whole contract.
"""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ramen.kernels.cuda_graphs import CALLS_TO_RECORD, Function
from ramen.memory.stream_memory import StreamMemory
from ramen.methods import _saved_folder, _saved_state
from ramen.methods._answers import Answer, Prediction
from ramen.methods._info import MethodInfo
from ramen.methods._parameters import Parameters
from ramen.methods._recording import RecordedSteps
from ramen.methods._state import DeclaredState
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.devices import upload
from ramen.utils.numerics import finite_or_zero, finite_rows, plain_numerics
from ramen.utils.peers import Group, Peers, check_same

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
        seed: Decides everything random.
        group: The ``torch.distributed`` process group that shares the stream: all its processes call
            ``predict`` in step, each with its own part of the batch, which may be empty. The global batch is
            that of the first process, then that of the second, and so on. None: this process alone.

    Attributes:
        images_seen: How many images all processes have offered so far.
        peers: The processes of the group; None without one.
    """

    info: ClassVar[MethodInfo]
    # the parameters that a saved state depends on, beside the classifier and the seed
    state_parameters: ClassVar[tuple[str, ...]] = ()
    # those of them that states of earlier versions do not name, with the values that these had
    later_parameters: ClassVar[Mapping[str, Any]] = {}
    # whether answers come with the entries behind them, if asked for
    retrieves: ClassVar[bool] = False
    # whether ``adapt`` does the same operations for every batch of a size, so that a CUDA graph may hold it:
    # no value of a tensor decides what the host does (``ramen.kernels.cuda_graphs.holds`` excepted), and
    # whatever is kept is a declared state or memory
    recordable: ClassVar[bool] = False
    # whether ``adapt`` learns from the images of all processes of a group, so that all of them learn the same
    joins_groups: ClassVar[bool] = False

    def __init__(self, classifier: ZeroShotClassifier, *, seed: int = 0, group: Group = None) -> None:
        super().__init__()
        self.classifier = check_classifier(classifier)
        if group is not None and not self.joins_groups:
            raise ValueError(f"group must be None: {type(self).__name__} has no way to share a stream")
        self.peers = None if group is None else Peers(group)
        self._same_as_peers = group is None
        self.seed = checks.integer("seed", seed, 0)
        self.chosen: dict[str, str] = {}  # why, for each parameter that the method chose itself
        # given the size of the first images, for what can only be chosen then
        self.on_first_images: Callable[[tuple[int, int]], None] | None = None
        self.images_seen = 0
        self.one_caller = _OneCaller()
        self._refused = torch.zeros((), dtype=torch.int64, device=classifier.device)
        self._recorder = classifier.recorder()
        self._records = self._recorder.records_on(classifier.device)
        self._recorded_steps = RecordedSteps(self, self._recorder)

    # -- to be written by a method ------------------------------------------------------------------

    @abstractmethod
    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Answer a batch and learn from it.

        Called without gradients; a method that needs them switches them on. New values of a declared state
        are assigned to its attribute.

        Args:
            images: Finite images on the classifier's device.
            usable: False for images that came with non-finite pixels and must leave no trace.
        """

    def passes(self) -> tuple[int, int]:
        """Forward and backward passes per image, if parameters decide that; by default the record's."""
        return self.info.forwards, self.info.backwards

    @property
    def batch_dependent(self) -> bool:
        """Whether batch mates change an answer, if parameters decide that; by default the record's."""
        return self.info.batch_dependent

    # -- to be used by a method ---------------------------------------------------------------------

    def record(self, function: Function) -> Function:
        """``function`` of tensors as a CUDA graph, on a GPU; for methods whose steps cannot be recorded."""
        return self._recorder.record(function) if self._records else function

    def replace_memory(self, memory: _Memory, prefix: str = "") -> _Memory:
        """Register ``memory`` in place of the one that has this prefix."""
        del self.memories[prefix]
        self._recorded_steps = RecordedSteps(self, self._recorder)  # the old ones hold the old addresses
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
        with self.one_caller, plain_numerics(), torch.no_grad():
            total = self._begin(len(images))
            images, usable, home = self.receive(images)
            if self._records and self.records_steps:
                answer = self._recorded_steps(self, images, usable, tags, return_support)
            else:
                answer = self.learning(len(images), tags, lambda: self.adapt(images, usable))
            self.images_seen += total
            return self.finish(answer, images, home, return_support)

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
        if self.on_first_images is not None:
            self.on_first_images((images.shape[2], images.shape[3]))
        return finite_or_zero(images).to(device), finite_rows(images).to(device), home

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
        usable = answer.usable & finite_rows(answer.logits)
        refused, zero_shot, clf = ~usable, answer.zero_shot_logits, self.classifier
        self._refused += refused.sum()

        def zero_shot_logits() -> Tensor:
            with plain_numerics(), torch.no_grad():
                logits = clf.logits(clf.encode(images)) if zero_shot is None else zero_shot
                return finite_or_zero(logits).to(home)

        entries = answer.support().to(home) if support and answer.support is not None else None
        logits, fallback = answer.logits.to(home), refused.to(home)
        if zero_shot is None and usable.all():
            return Prediction(logits, zero_shot_logits, fallback, entries)
        instead = zero_shot_logits()
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

        The file is in the format of safetensors. In a group of processes it is a folder, to which all of
        them write; ``load`` takes it to any number of processes.
        """
        if self.peers is None:
            _saved_state.write_file(path, self.state_dict())
        else:
            _saved_folder.write(path, self.state_dict(), self.peers)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue where ``save`` wrote ``path``; a ValueError names what is wrong and changes nothing.

        A file or folder of one process or of many will do, in one process or in many.
        """

        def read() -> dict[str, Tensor]:
            if not _saved_folder.is_one(path):
                return self.counted_once(_saved_state.read_file(path))
            # The memories of the state's own parameters know how to put its shares together.
            undo = self.adopt(_saved_state.saved_parameters(next(iter(_saved_folder.states(path)))))
            try:
                return self._joined(partial(_saved_folder.states, path))
            except BaseException:
                undo()
                raise

        self.load_state_dict(read() if self.peers is None else self.peers.attempt(read, "reading the state"))

    def _joined(self, states: Callable[[], Iterator[dict[str, Tensor]]]) -> dict[str, Tensor]:
        """The state that is made of those of a group's processes: for this process, or this one alone."""
        first = next(states())
        refused = sum(int(state["images_refused"]) for state in states())
        whole = self.counted_once({**first, "images_refused": torch.tensor(refused, device="cpu")})
        for prefix, memory in self.memories.items():
            parts = (self._part(prefix, _content_of(state)) for state in states())
            whole = {name: whole[name] for name in whole if name not in self._names_of(prefix, first)}
            whole |= {f"{CONTENT}{prefix}{name}": tensor for name, tensor in memory.join(parts).items()}
        return whole

    def counted_once(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state of one process for this one of a group, whose first process counts what was refused."""
        if self.peers is None or not self.peers.rank:
            return state
        return {**state, "images_refused": torch.zeros((), dtype=torch.int64, device="cpu")}

    def _names_of(self, prefix: str, state: Mapping[str, Tensor]) -> set[str]:
        return {f"{CONTENT}{prefix}{name}" for name in self._part(prefix, _content_of(state))}

    def adopt(self, saved: Mapping[str, Any]) -> Callable[[], None]:
        """For methods that choose parameters: use those of a state before it is compared and loaded.

        Args:
            saved: The parameters that the state names; empty if it is damaged.

        Returns:
            What takes it back, for a state that cannot be loaded.
        """
        return lambda: None

    def _load(self, state: Mapping[str, Tensor], salvage: bool) -> None:
        images_seen, refused = _saved_state.check(
            state, self._identity(), self.classifier.class_embeddings, self.later_parameters
        )
        content = _content_of(state)
        self.restore(self.salvage(content) if salvage else content)
        self.images_seen = images_seen
        self._refused.fill_(refused)


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
