"""Collective operations between the processes of a group: numbers, and uneven parts of tensors.

Every function here is called by all processes of the group, in the same order. Only one collective operation
is used, ``all_gather``, and it moves bytes: whatever is sent arrives bit for bit. Sums are added up by the
receiver in the order of the processes, so that all of them hold the same number.

A process that has died, or hangs, is reported by a ``GroupError`` within the timeout.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import ProcessGroup

Group: TypeAlias = "ProcessGroup | None"  # None: this process alone
TIMEOUT_VARIABLE = "RAMEN_GROUP_TIMEOUT"
_TIMEOUT = 60.0  # seconds
_FAILED = "failed"
_Value = TypeVar("_Value")


class GroupError(RuntimeError):
    """The processes of a group cannot go on together."""


class PeerFailedError(GroupError):
    """Another process of the group has failed, and all of them know why; they are still in step."""


@dataclass(frozen=True)
class Failures:
    """What has failed in the processes of a group.

    Attributes:
        messages: One for each process; None if nothing has.
        known_to_first: Whether the first process has heard of them, too.
    """

    messages: list[str | None]
    known_to_first: bool

    def raise_first(self, what: str) -> None:
        """``PeerFailedError`` with the first message, if there is one."""
        for rank, message in enumerate(self.messages):
            if message is not None:
                raise PeerFailedError(f"{what} failed in process {rank} of the group: {message}")


@dataclass
class Traffic:
    """What a process has sent to the others so far."""

    bytes: int = 0
    calls: int = 0


class Peers:
    """A process's view of the group that it belongs to.

    Args:
        group: An initialised process group.
        timeout: How many seconds to wait for the others; the environment variable ``RAMEN_GROUP_TIMEOUT``, or
            60, if not given.

    Attributes:
        rank: The number of this process in the group.
        size: How many processes it has.
        sizes: How many images each process brings to the present batch.
        traffic: What this process has sent so far.
    """

    def __init__(self, group: "ProcessGroup", timeout: float | None = None) -> None:
        import torch.distributed as dist

        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                "group must be a torch.distributed process group that this process belongs to, such as "
                f"torch.distributed.group.WORLD after init_process_group, got {type(group).__name__}"
            )
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.timeout = chosen_timeout() if timeout is None else timeout
        self.sizes = [0] * self.size
        self.traffic = Traffic()
        # Numbers that the host needs do not go through a GPU: a dead process is then found by the host.
        self._on_host: Any = group
        self._takes_gpu_tensors = dist.get_backend(group) == "nccl"
        if self._takes_gpu_tensors:
            ranks = dist.get_process_group_ranks(group)
            with meeting(self.timeout):
                self._on_host = dist.new_group(ranks, backend="gloo", timeout=timedelta(seconds=self.timeout))

    def __repr__(self) -> str:
        return f"Peers(process {self.rank} of {self.size})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a method of a group of processes cannot be copied or pickled: save and load it")

    # -- small things, by way of the host -----------------------------------------------------------

    def begin(self, images: int) -> None:
        """Start a global batch to which this process brings so many images; then ``sizes`` has them all."""
        self.sizes = self.numbers(images, "starting a batch")
        if not sum(self.sizes):
            raise ValueError("images must hold at least one image in one process, got only empty batches")

    @property
    def own(self) -> slice:
        """The images of this process in the global batch."""
        start = sum(self.sizes[: self.rank])
        return slice(start, start + self.sizes[self.rank])

    def numbers(self, number: int, what: str) -> list[int]:
        """The numbers of all processes, in their order."""
        own = torch.tensor([number], dtype=torch.int64, device="cpu")
        every = torch.empty(self.size, dtype=torch.int64, device="cpu")
        self._gather_equal(every, own, what, self._on_host)
        found: list[int] = every.tolist()
        return found

    def values(self, value: Any, what: str) -> list[Any]:
        """The values of all processes, in their order; what JSON can hold."""
        text = json.dumps(value).encode()
        lengths = self.numbers(len(text), what)
        own = torch.zeros(max(lengths), dtype=torch.uint8, device="cpu")
        own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        every = torch.empty(self.size * len(own), dtype=torch.uint8, device="cpu")
        self._gather_equal(every, own, what, self._on_host)
        parts = zip(every.view(self.size, -1), lengths, strict=True)
        return [json.loads(part[:length].numpy().tobytes()) for part, length in parts]

    def failures(self, error: Exception | None, what: str) -> "Failures":
        """What has failed in each process, of which this one has an error, or none."""
        own = None if error is None else f"{type(error).__name__}: {error}"
        try:
            said = self.values({_FAILED: own}, what)
        except GroupError:
            if error is not None:
                raise error from None  # it says more than that others are gone
            raise
        # One that said something else is elsewhere in its work, and will notice that it is alone there.
        in_step = [isinstance(one, dict) and one.keys() == {_FAILED} for one in said]
        messages = [one[_FAILED] if there else None for one, there in zip(said, in_step, strict=True)]
        return Failures(messages, known_to_first=in_step[0])

    def agree(self, error: Exception | None, what: str) -> None:
        """Raise in all processes if one has an error: its own there, a ``PeerFailedError`` elsewhere."""
        found = self.failures(error, what)
        if error is not None:
            raise error
        found.raise_first(what)

    def attempt(self, work: Callable[[], _Value], what: str) -> _Value:
        """What ``work`` returns, if it succeeds in all processes; otherwise all of them raise an error."""
        error: Exception | None = None
        try:
            value = work()
        except Exception as raised:
            error = raised
        self.agree(error, what)
        return value

    # -- tensors ------------------------------------------------------------------------------------

    def gather(self, rows: Tensor, sizes: Sequence[int], what: str) -> Tensor:
        """The rows of all processes, one process after the other.

        Args:
            rows: Those of this process, ``(sizes[rank], ...)``.
            sizes: How many each process has.
            what: A word for an error message.
        """
        most, flat = max(sizes), self._carried(_as_bytes(rows))
        if not most or not flat.shape[1]:
            return rows.new_empty(sum(sizes), *rows.shape[1:])
        own = flat.new_zeros(most, flat.shape[1])
        own[: len(flat)] = flat
        every = flat.new_empty(self.size * most, flat.shape[1])
        self._gather_equal(every, own, what, self._group_for(own))
        parts = every.view(self.size, most, -1)
        found = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        return _from_bytes(found.to(rows.device), rows.dtype, rows.shape[1:])

    def gather_columns(self, columns: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
        """Columns with a row for each image of this process, for the global batch; in one exchange."""
        packed = [_as_bytes(column) for column in columns.values()]
        every = self.gather(torch.cat(packed, 1), self.sizes, what)
        parts = every.split([part.shape[1] for part in packed], 1)
        return {
            name: _from_bytes(part, column.dtype, column.shape[1:])
            for part, (name, column) in zip(parts, columns.items(), strict=True)
        }

    def total(self, tensor: Tensor, what: str) -> Tensor:
        """The sum over all processes, added up in their order, in fp64 for floating-point numbers.

        All processes get the same bits.
        """
        every = self.gather(tensor[None], [1] * self.size, what)
        exact = torch.float64 if tensor.is_floating_point() else every.dtype
        return every.to(exact).sum(0).to(tensor.dtype)

    def _carried(self, tensor: Tensor) -> Tensor:
        """The tensor where the group's backend takes it: gloo takes tensors on the CPU."""
        return tensor if self._takes_gpu_tensors else tensor.cpu()

    def _group_for(self, tensor: Tensor) -> Any:
        """NCCL takes tensors of GPUs alone."""
        return self._on_host if tensor.device.type == "cpu" else self.group

    # -- the one operation --------------------------------------------------------------------------

    def _gather_equal(self, every: Tensor, own: Tensor, what: str, group: Any) -> None:
        import torch.distributed as dist

        with self._reported(what):
            work = dist.all_gather_into_tensor(every, own, group=group, async_op=True)
        self._count((self.size - 1) * own.numel() * own.element_size())
        self._wait(work, own, what)

    def _count(self, sent: int) -> None:
        self.traffic.bytes += sent
        self.traffic.calls += 1

    def _wait(self, work: Any, sent: Tensor, what: str) -> None:
        with self._reported(what):
            if sent.device.type == "cpu":
                work.wait(timedelta(seconds=self.timeout))
            else:
                work.wait()  # the GPU waits, not the host; NCCL itself ends a process that waits for too long

    @contextmanager
    def _reported(self, what: str) -> "Iterator[None]":
        try:
            yield
        except RuntimeError as error:
            raise GroupError(
                f"{what}: a process of the group did not answer process {self.rank} of {self.size} within "
                f"{self.timeout:g} s, or has closed its connection; it has probably died or raised an error, "
                f"and its own output says why. The saved state resumes with the remaining processes ({error})"
            ) from error


@contextmanager
def meeting(seconds: float) -> "Iterator[None]":
    """A block in which processes find each other; ``GroupError`` if they do not.

    Args:
        seconds: How long each of them waits, as the block says to torch.
    """
    try:
        yield
    except RuntimeError as error:
        raise GroupError(
            f"the processes of the group did not find each other within {seconds:g} s: one of them has "
            "probably died or raised an error, and its own output says why. "
            f"{TIMEOUT_VARIABLE} sets another time ({error})"
        ) from error


def check_same(peers: Peers, parameters: Mapping[str, Any], model: Any) -> None:
    """Raise in all processes unless they have the same parameters and the same model."""
    digest = sha256(json.dumps(model, sort_keys=True).encode()).hexdigest()
    own = {name: repr(value) for name, value in parameters.items()} | {"classifier": digest[:12]}
    for rank, theirs in enumerate(peers.values(own, "comparing parameters")):
        for name in own.keys() | theirs.keys():
            if own.get(name) != theirs.get(name):
                raise ValueError(
                    f"{name} must be the same in all processes of the group, got {own.get(name)} in process "
                    f"{peers.rank} and {theirs.get(name)} in process {rank}"
                )


def chosen_timeout() -> float:
    """Seconds to wait for other processes, if a caller does not say."""
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text) if text else _TIMEOUT
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"{TIMEOUT_VARIABLE} must be a positive number of seconds, got {text!r}")
    return seconds


def _as_bytes(rows: Tensor) -> Tensor:
    """``(n, bytes per row)``."""
    flat = rows.contiguous().view(len(rows), rows.shape[1:].numel())
    return flat.view(torch.uint8) if flat.shape[1] else flat.to(torch.uint8)


def _from_bytes(packed: Tensor, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    if not shape.numel():
        return torch.empty(len(packed), *shape, dtype=dtype, device=packed.device)
    # A copy of its own: numbers must begin at a multiple of their size.
    return packed.clone(memory_format=torch.contiguous_format).view(dtype).view(len(packed), *shape)


class ReportedElsewhereError(RuntimeError):
    """An error that the first process of the group reports."""


def attempt_reported_once(peers: Peers, work: Callable[[], _Value], what: str) -> _Value:
    """What ``work`` returns, if it succeeds in all processes.

    Otherwise the first process raises what is to be reported, and those that know so raise
    ``ReportedElsewhereError``.
    """
    error: Exception | None = None
    try:
        value = work()
    except Exception as raised:
        error = raised
    found = peers.failures(error, what)
    if peers.rank and found.known_to_first and any(found.messages):
        raise ReportedElsewhereError(next(filter(None, found.messages))) from error
    if error is not None:
        raise error
    found.raise_first(what)
    return value
