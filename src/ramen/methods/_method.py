"""What every method is: the contract between methods and those who call them, and what these get."""

import copy
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar

import torch
from torch import Tensor

from ramen.kernels.graphs import CALLS_TO_RECORD
from ramen.memory.base import StreamMemory
from ramen.methods._passes import Answer, Prediction, Steps
from ramen.methods._registry import (
    AUTO,
    Field,
    MethodInfo,
    Parameters,
    field,
    fields_of,
    nearest_published,
)
from ramen.methods._runner import Runner, finish, joined, receive
from ramen.methods._state import (
    CONTENT,
    Identity,
    State,
    StateTensor,
    read_file,
    saved_parameters,
    write_file,
)
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.distributed import Group, Peers, check_same
from ramen.utils.numerics import plain_numerics

_Memory = TypeVar("_Memory", bound=StreamMemory)
_Value = TypeVar("_Value")
# Names of earlier versions, and what to use now.
_GONE = {
    "content": "state.content()",
    "restore": "load_state_dict(state)",
    "clear": "reset()",
    "store_states": "state.commit(...) is called after each step",
    "memories": "state.memories",
    "allocated_bytes": "state.allocated_bytes()",
    "records_steps": "recordable",
    "later_parameters": "field(saved=True, before=...)",
    "whole_with_gradients": "whole(rows, gradients=True)",
}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Method(ABC):
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
    _fields: ClassVar[Mapping[str, Field]] = {}  # the parameters that the class and its bases declare
    # the parameters that a saved state depends on, beside the classifier and the seed
    state_parameters: ClassVar[tuple[str, ...]] = ()
    # whether answers come with the entries behind them, if asked for
    retrieves: ClassVar[bool] = False
    # whether ``adapt`` does the same operations for every batch of a size, so that a CUDA graph may hold it:
    # no value of a tensor decides what the host does (``ramen.kernels.graphs.holds`` excepted), and
    # whatever is kept is a declared state or memory
    recordable: bool = False
    # whether ``adapt`` learns from the images of all processes of a group, so that all of them learn the same
    joins_groups: ClassVar[bool] = False

    seed: int = field(0, ge=0, doc="Decides everything random.")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._fields = fields_of(cls)
        if "state_parameters" not in vars(cls):
            saved = [name for name, one in cls._fields.items() if one.saved]
            cls.state_parameters = tuple(dict.fromkeys([*cls.state_parameters, *saved]))

    def __init__(self, classifier: ZeroShotClassifier, *, group: Group = None, **parameters: Any) -> None:
        self.state = State()
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
        self._runner = Runner(self, self._recorder)
        self.setup()

    def _set_fields(self, given: Mapping[str, Any]) -> None:
        """Check the parameters and make attributes of them."""
        if unknown := given.keys() - self._fields.keys():
            names = ", ".join(map(repr, sorted(unknown)))
            raise TypeError(
                f"{type(self).__name__} has no parameter {names}, it has {', '.join(self._fields)}"
            )
        for name, one in self._fields.items():
            value = one.checked(name, given.get(name, one.default))
            if one.published is not None and value == AUTO:
                value, self.chosen[name] = nearest_published(one.published, self.classifier.num_classes)
            if one.check is not None:
                one.check(self, value)
            setattr(self, name, value)

    # -- to be written by a method ------------------------------------------------------------------

    def setup(self) -> None:  # noqa: B027
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
    def _most_images(self) -> int | None:
        """How many images ``adapt`` takes at most; ``predict`` cuts larger batches."""
        return None

    @property
    def batch_dependent(self) -> bool:
        """Whether batch mates change an answer: as the record says, or through the batch's statistics."""
        return self.info.batch_dependent or getattr(self, "statistics", "source") == "batch"

    # -- to be used by a method ---------------------------------------------------------------------

    def add_state(
        self,
        name: str,
        default: Tensor,
        *,
        finite: bool = True,
        minimum: float | None = None,
        kept: bool = False,
    ) -> None:
        """Declare a tensor that the method keeps: an attribute that is reset, saved, restored and counted.

        Args:
            name: Of the attribute, and in a saved state.
            default: Its values at the start; its type, shape and device stay.
            finite: Whether a saved one must be finite to be loaded.
            minimum: What no value of a saved one may be below.
            kept: Whether a reset leaves it as it is.
        """
        if hasattr(self, name):
            raise ValueError(f"name must be new, got {name!r}, which {type(self).__name__} has already")
        start = default.detach()
        self.state.tensors[name] = StateTensor(start, start.clone(), finite, minimum, kept)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A declared tensor, unless the step has assigned new values to it."""
            state = vars(self).get("state")
            if state is not None and name in state.tensors:
                return state.tensors[name].place
            hint = f": {_GONE[name]}" if name in _GONE else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def add_memory(self, memory: _Memory, prefix: str = "") -> _Memory:
        """Register a memory, which then is reset, saved, restored and counted with the method.

        Args:
            memory: It is also returned.
            prefix: Of the names of its parts in a saved state.
        """
        if prefix in self.state.memories:
            raise ValueError(f"prefix must be new, got {prefix!r}, which another memory has")
        self.state.memories[prefix] = memory
        return memory

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

    def whole(self, rows: Tensor, *, gradients: bool = False) -> Tensor:
        """One row per image of the global batch, of those for this process's images.

        With ``gradients``, these flow to the rows of this process: if every process differentiates a loss of
        the global batch, the sum of their gradients is its own.
        """
        if self.peers is None:
            return rows
        peers = self.peers
        every = peers.gather(rows.detach(), peers.sizes, "gathering what the images have shown")
        if not gradients:
            return every
        return torch.cat([every[: peers.own.start], rows, every[peers.own.stop :]])

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
            images, usable, home = receive(self, images)
            answers = []
            for piece in self._pieces(len(images)):
                total = self._begin(piece.stop - piece.start)
                part = images[piece], usable[piece], None if tags is None else tags[piece]
                answers.append(self._runner.answer_and_learn(self, *part, support=return_support))
                self.images_seen += total
            return finish(self, joined(answers), images, home, return_support)

    def _pieces(self, images: int) -> list[slice]:
        """The parts of a batch that one step each takes; in a group, of the whole batch."""
        most = self._most_images
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
            self._drop_assigned()
            self.state.clear()
            self.images_seen = 0
            self._refused.zero_()

    # -- recorded steps -----------------------------------------------------------------------------

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
        recorded = self._runner.records_steps(self)
        value = torch.nan if recorded else 0.0
        with self._rehearsal(recorded):
            for shape in shapes:
                for _ in range(CALLS_TO_RECORD):
                    self.predict(torch.full(shape, value, device=self.classifier.device))

    @contextmanager
    def _rehearsal(self, recorded: bool) -> Iterator[None]:
        """A block that leaves no trace."""
        saved = None if recorded else self.state_dict()
        counts = self.images_seen, self._refused.clone()
        with ExitStack() as stack:
            for memory in self.state.memories.values() if saved is None else ():
                stack.enter_context(memory.rehearsal())
            try:
                yield
            finally:
                if saved is not None:
                    self.load_state_dict(saved)
                self.images_seen = counts[0]
                self._refused.copy_(counts[1])

    # -- state --------------------------------------------------------------------------------------

    def _identity(self) -> Identity:
        named = {"seed": self.seed} | {name: getattr(self, name) for name in self.state_parameters}
        return Identity(self.info.name, named, self.classifier)

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

    def state_dict(
        self, *, identity: bool = True, without_patches: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Everything needed to continue, as tensors; safetensors and ``torch.save`` take it as it is.

        Args:
            identity: Also what says what the state belongs to.
            without_patches: Prefixes of memories: without what is in their patches.
        """
        with self.one_caller:
            state = self._identity().written() if identity else {}
            state["images_seen"] = torch.tensor(self.images_seen, device="cpu")
            state["images_refused"] = self._refused.clone()
            content = self.state.content(without_patches)
            return state | {f"{CONTENT}{name}": tensor for name, tensor in content.items()}

    @plain_numerics()
    def load_state_dict(self, state: Mapping[str, Tensor], *, salvage: bool = False) -> None:
        """Continue where ``state`` was taken; a ValueError says what differs and changes nothing.

        Args:
            state: What ``state_dict`` returned.
            salvage: Entries may be missing from its memories: continue with the others.
        """
        with self.one_caller:
            undo = self._adopt(saved_parameters(state))
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
            write_file(path, state)
            return
        refused = sum(self.peers.numbers(self.images_refused, "saving"))
        state["images_refused"] = torch.tensor(refused, device="cpu")

        def write() -> None:
            if self.peers is not None and self.peers.rank == 0:
                write_file(path, state)

        self.peers.attempt(write, "saving")

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue where ``save`` wrote ``path``; a ValueError names what is wrong and changes nothing.

        A file of one process or of many will do, in one process or in many.
        """

        def read() -> dict[str, Tensor]:
            state = read_file(path)
            if self.peers is not None and self.peers.rank:  # the first one counts what was refused before
                state["images_refused"] = torch.zeros((), dtype=torch.int64, device="cpu")
            return state

        self.load_state_dict(read() if self.peers is None else self.peers.attempt(read, "reading the state"))

    # -- for methods that choose parameters, or whose state has parts that may contradict each other --------

    def _adopt(self, saved: Mapping[str, Any]) -> Callable[[], None]:
        """Use parameters of a state before it is compared and loaded; empty ones if it is damaged.

        Returns:
            What takes it back, for a state that cannot be loaded.
        """
        return lambda: None

    def _upgraded(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a saved state by their names today, with those that are younger than it."""
        younger = {name: one.before for name, one in self._fields.items() if one.is_younger}
        return {**younger, **saved}

    def _check_content(self, content: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Raise ValueError if parts of a saved state contradict each other; each by itself is checked."""

    def _load(self, state: Mapping[str, Tensor], salvage: bool) -> None:
        images_seen, refused = self._identity().check(state, self._upgraded)
        content = {name.removeprefix(CONTENT): state[name] for name in state if name.startswith(CONTENT)}
        self.state.restore(self.state.salvage(content) if salvage else content, self._check_content)
        self._drop_assigned()
        self.images_seen = images_seen
        self._refused.fill_(refused)

    def _drop_assigned(self) -> None:
        """Of a step that failed, the new values of declared tensors."""
        for name in self.state.tensors.keys() & vars(self).keys():
            delattr(self, name)

    def memory_bytes(self) -> int:
        """The most that the method will ever keep of the stream."""
        return self.state.most_bytes()


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
