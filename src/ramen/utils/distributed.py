"""Collective operations between the processes of a group: numbers, and uneven parts of tensors.

Every function here is called by all processes of the group, in the same order. Only one collective operation
is used, ``all_gather``, and it moves bytes: whatever is sent arrives bit for bit. Sums are added up by the
receiver in the order of the processes, so that all of them hold the same number.

A process that has died, or hangs, is reported by a ``GroupError`` within the timeout.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
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


class ReportedElsewhereError(RuntimeError):
    """An error that the first process of the group reports."""


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
        # Numbers that the host needs do not go through a GPU: a dead process is then found by the host.
        self._on_host: Any = group
        self._takes_gpu_tensors = dist.get_backend(group) == "nccl"
        if self._takes_gpu_tensors:
            ranks = dist.get_process_group_ranks(group)
            with meeting(self.timeout):
                self._on_host = dist.new_group(ranks, backend="gloo", timeout=timedelta(seconds=self.timeout))

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
        found: list[int] = self._all_gather(own, what).tolist()
        return found

    def values(self, value: Any, what: str) -> list[Any]:
        """The values of all processes, in their order; what JSON can hold."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self.numbers(len(text), what)
        parts = self.gather(text, lengths, what).split(lengths)
        return [json.loads(part.numpy().tobytes()) for part in parts]

    def attempt(self, work: Callable[[], _Value], what: str, *, report_once: bool = False) -> _Value:
        """What ``work`` returns, if it succeeds in all processes.

        Otherwise all of them raise an error: their own, or a ``PeerFailedError``. With ``report_once`` the
        first process does so alone, and others that know it raise ``ReportedElsewhereError``.
        """
        error: Exception | None = None
        try:
            value = work()
        except Exception as raised:
            error = raised
        try:
            said = self.values({_FAILED: None if error is None else f"{type(error).__name__}: {error}"}, what)
        except GroupError:
            if error is not None:
                raise error from None  # it says more than that others are gone
            raise
        # One that said something else is elsewhere in its work, and will notice that it is alone there.
        in_step = [isinstance(one, dict) and one.keys() == {_FAILED} for one in said]
        failed = {rank: said[rank][_FAILED] for rank in range(self.size) if in_step[rank]}
        failed = {rank: message for rank, message in failed.items() if message is not None}
        if report_once and self.rank and in_step[0] and failed:
            raise ReportedElsewhereError(next(iter(failed.values()))) from error
        if error is not None:
            raise error
        for rank, message in failed.items():
            raise PeerFailedError(f"{what} failed in process {rank} of the group: {message}")
        return value

    # -- tensors ------------------------------------------------------------------------------------

    def gather(self, rows: Tensor, sizes: Sequence[int], what: str) -> Tensor:
        """The rows of all processes, one after the other; ``sizes`` says how many each of them has."""
        most, flat = max(sizes), _as_bytes(rows)
        if not most or not flat.shape[1]:
            return rows.new_empty(sum(sizes), *rows.shape[1:])
        flat = flat if self._takes_gpu_tensors else flat.cpu()  # gloo takes tensors on the CPU
        own = flat.new_zeros(most, flat.shape[1])
        own[: len(flat)] = flat
        parts = self._all_gather(own, what).view(self.size, most, -1)
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

    # -- the one operation --------------------------------------------------------------------------

    def _all_gather(self, own: Tensor, what: str) -> Tensor:
        """The rows of all processes, of which each has as many."""
        import torch.distributed as dist

        every = own.new_empty(self.size * len(own), *own.shape[1:])
        on_host = own.device.type == "cpu"
        try:
            work: Any = dist.all_gather_into_tensor(
                every, own, group=self._on_host if on_host else self.group, async_op=True
            )
            # A GPU waits by itself, not the host; NCCL ends a process that waits for too long.
            if on_host:
                work.wait(timedelta(seconds=self.timeout))
            else:
                work.wait()
        except RuntimeError as error:
            raise GroupError(
                f"{what}: a process of the group did not answer process {self.rank} of {self.size} within "
                f"{self.timeout:g} s, or has closed its connection; it has probably died or raised an error, "
                f"and its own output says why. The saved state resumes with the remaining processes ({error})"
            ) from error
        return every


@contextmanager
def meeting(seconds: float) -> Iterator[None]:
    """A block in which processes find each other within ``seconds``; ``GroupError`` if they do not."""
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
