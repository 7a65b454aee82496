"""One class-split embedding-gradient memory of a group of processes, each of which holds a share of it.

Each process brings its part of a global batch, asks for its own images and gets their sums, with the calls of
``ramen.memory.retrieval.Memory``. The global batch is that of the first process, followed by that of the
second, and so on; every entry is stored by the process that holds its piece of the queue
(``ramen.memory.queue_pieces``). A step has these exchanges:

- embeddings, pseudo-labels, entropies and tags of all images to all processes;
- gradients, in stored form, to those that will hold them;
- what each process has found for a query, without gradients, to the process that asked;
- the weights of what was found, back;
- sums of gradients to the process that asked, which adds them up in the order of the processes.

What is retrieved is what one process with the whole memory retrieves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.memory import shares
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory, Selection
from ramen.memory.storage import Staged
from ramen.memory.stream_memory import StreamMemory
from ramen.utils.byte_sizes import readable_bytes
from ramen.utils.numerics import running_counts
from ramen.utils.peers import Peers


@dataclass(frozen=True)
class GroupStaged:
    """A global batch that is about to enter, as this process sees it.

    Attributes:
        keep: Which images of this process may enter.
        numbers: The stream numbers of this process's images.
        owned: The entries of the global batch that this process will hold; one that is not kept if none.
        owns: How many they are.
        arrived: How many of them have arrived with each image of the global batch.
        entering: How many entries enter each queue.
    """

    keep: Tensor
    numbers: Tensor
    owned: Staged
    owns: int
    arrived: Tensor
    entering: Tensor


@dataclass(frozen=True)
class GroupSelection(Selection):
    """What this process's queries have retrieved from all processes; ``rows`` are numbers of candidates.

    Attributes:
        found: What all queries have found in this process's share.
        per_piece: How many candidates each piece of a queue has offered.
    """

    found: Selection
    per_piece: int


class GroupMemory(StreamMemory):
    """A ``Memory`` of a group of processes.

    Args:
        plan: Of the whole memory, with as many processes as the group has.
        peers: The group.

    Attributes:
        seen: How many images all processes have offered so far.
        share: What this process holds: pieces of queues, as queues of their own.
    """

    def __init__(self, plan: MemoryPlan, peers: Peers) -> None:
        if plan.processes != peers.size:
            raise ValueError(f"plan must be for {peers.size} processes, got {plan.processes}")
        self.plan, self.pieces, self.peers = plan, plan.pieces, peers
        self.share = Memory(plan.share())
        self.device = self.share.device
        self.seen = 0
        self._counts = torch.zeros(plan.queues, dtype=torch.int64, device=self.device)
        self._first = 0  # the stream number of the present batch's first image
        self._underway: Callable[[], Tensor] | None = None  # embeddings that are being gathered
        self._gathered: tuple[Tensor, Tensor] | None = None  # those of this process, and of all

    def __repr__(self) -> str:
        places = ", ".join(f"{readable_bytes(n)} on {device}" for device, n in self.plan.max_bytes().items())
        return (
            f"GroupMemory({self.plan.queues} queues of {self.plan.capacity} in {self.peers.size} processes, "
            f"codec {self.plan.codec!r}, at most {places} in each)"
        )

    def __len__(self) -> int:
        """Entries that this process holds."""
        return len(self.share)

    @property
    def accumulate(self) -> torch.dtype:
        """What sums are computed in; see ``Memory``."""
        return self.share.accumulate

    @accumulate.setter
    def accumulate(self, dtype: torch.dtype) -> None:
        self.share.accumulate = dtype

    def most_bytes(self) -> int:
        """The most that this process's share will ever take."""
        return self.share.most_bytes()

    def allocated_bytes(self) -> int:
        """What this process's share takes now."""
        return self.share.allocated_bytes()

    def fill(self) -> tuple[int, int] | None:
        """How many entries this process holds, and how many it can hold."""
        return self.share.fill()

    # -- insertion ----------------------------------------------------------------------------------

    def admit(self, batch: int) -> range:
        """Count a global batch whose parts the processes have exchanged (``Peers.begin``).

        Returns:
            The stream numbers of this process's images.
        """
        own = self.peers.own
        if batch != own.stop - own.start:
            raise ValueError(f"batch must be {own.stop - own.start}, as announced, got {batch}")
        self._first, self._gathered, self._underway = self.seen, None, None
        self.seen += sum(self.peers.sizes)
        return range(self._first + own.start, self._first + own.stop)

    def _numbers(self) -> Tensor:
        """The stream numbers of the global batch."""
        return torch.arange(self._first, self._first + sum(self.peers.sizes), device=self.device)

    def announce(self, tags: Tensor | None, numbers: Tensor | None = None) -> None:
        """Tags of the next batch to be staged."""
        self.share.announce(tags, numbers)

    def fetch_ahead(self, queries: int, topk: int) -> Callable[[Tensor], AbstractContextManager[None]] | None:
        """Gather the embeddings of all processes while something else is computed.

        Not on a GPU, whose passes are recorded without what the host has to do.
        """
        return None if self.share.fixed_shapes else self._gathering

    @contextmanager
    def _gathering(self, embeddings: Tensor) -> Iterator[None]:
        if embeddings.device.type == "cpu":
            self._underway = self.peers.gather_meanwhile(embeddings, self.peers.sizes, "gathering embeddings")
        yield

    def stage(
        self,
        queues: Tensor,
        embeddings: Tensor,
        gradients: Tensor,
        entropies: Tensor,
        keep: Tensor | None = None,
    ) -> GroupStaged:
        """Bring a batch into stored form and send each entry to its owner; arguments as for ``Memory``."""
        peers, here, numbers = self.peers, self.device, self._numbers()
        own = self.share.stage(
            queues, embeddings, gradients, entropies, keep=keep, numbers=numbers[peers.own]
        )
        every = self._everybodys(embeddings)
        facts = [own.queues, own.tags, own.keep.long(), own.entropies.view(torch.int32).long()]
        packed = peers.gather(torch.stack(facts, 1), peers.sizes, "gathering pseudo-labels")
        all_queues, all_tags, all_keep, all_entropies = packed.unbind(1)
        all_keep = all_keep.bool()

        arrived = running_counts(all_queues, all_keep, self.plan.queues)
        sequence = self._counts[all_queues] + arrived.gather(1, all_queues[:, None])[:, 0] - 1
        pieces = self.pieces.piece(all_queues, sequence)
        owners = torch.where(all_keep, self.pieces.owner(pieces), peers.size)
        stored, scales = self._rows_to_owners(own, owners)
        is_own = owners == peers.rank
        # Not nonzero(): how many they are is known, and the host does not wait for a GPU once more.
        mine = (~is_own).byte().argsort(stable=True)[: len(stored)]
        owned = Staged(
            queues=self.pieces.queue_there(pieces)[mine],
            embeddings=every[mine].to(here, own.embeddings.dtype),
            gradients=stored,
            scales=scales,
            entropies=all_entropies[mine].int().view(torch.float32),
            tags=all_tags[mine],
            numbers=numbers[mine],
            keep=torch.ones_like(mine, dtype=torch.bool),
        )
        staged = owned if len(mine) else _one_not_kept(owned)
        return GroupStaged(own.keep, own.numbers, staged, len(mine), is_own.cumsum(0), arrived[-1])

    def _everybodys(self, embeddings: Tensor) -> Tensor:
        """The embeddings of the global batch, of which this process has these."""
        if self._gathered is None or self._gathered[0] is not embeddings:
            wait, self._underway = self._underway, None
            if wait is None:
                wait = self.peers.gather_meanwhile(embeddings, self.peers.sizes, "gathering embeddings")
            self._gathered = embeddings, wait()
        return self._gathered[1]

    def _rows_to_owners(self, own: Staged, owners: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients and scales of the entries that this process will hold, in the order of the stream."""
        peers, size = self.peers, self.peers.size
        sizes = torch.tensor(peers.sizes, device=self.device)
        senders = torch.arange(size, device=self.device).repeat_interleave(sizes, output_size=len(owners))
        pairs = torch.bincount(senders * (size + 1) + owners, minlength=size * (size + 1))
        counts: list[list[int]] = pairs.view(size, size + 1).tolist()
        sent, received = counts[peers.rank][:size], [row[peers.rank] for row in counts]
        order = owners[peers.own].argsort(stable=True)[: sum(sent)]
        columns = [own.gradients[order], own.scales[order]]
        stored, scales = peers.exchange(columns, sent, received, "sending gradients to their owners")
        return stored, scales

    def put(self, staged: GroupStaged) -> None:
        """Store what this process will hold of a batch that was admitted."""
        if staged.owns:
            self.share.admit(staged.owns)
            self.share.put(staged.owned)
        self.share.seen = self.seen
        self._counts += staged.entering
        if self.plan.fifo == "float16":  # which counts entries held
            self._counts.clamp_max_(self.plan.capacity)

    # -- retrieval ----------------------------------------------------------------------------------

    def select(
        self,
        queries: Tensor,
        topk: int,
        *,
        staged: GroupStaged | None = None,
        draw: tuple[int, Tensor] | None = None,
    ) -> GroupSelection:
        """The entries of every queue that are most similar to this process's queries; as ``Memory``."""
        pieces = self.pieces
        every = self._everybodys(queries)
        owned, arrived = (None, None) if staged is None else (staged.owned, staged.arrived)
        drawn = None if draw is None else (draw[0], self._numbers())
        per_piece = min(topk, pieces.piece_capacity)
        found = self.share.select(every, per_piece, staged=owned, arrived=arrived, draw=drawn)
        columns = [found.valid, found.distances, found.entropies, found.tags, found.numbers]
        if pieces.per_queue > 1:
            columns.append(self.share.scores(every, found, staged=owned, draw=drawn))
        candidates = self._to_askers([_padded(column, per_piece) for column in columns])
        wanted = min(topk, self._most_in_a_queue(None if staged is None else len(every)))
        places = _best_places(candidates, wanted, ranked=pieces.per_queue > 1)
        valid, distances, entropies, tags, seen = (one.gather(2, places) for one in candidates[:5])
        width = candidates[0].shape[2]
        rows = places + width * torch.arange(self.plan.queues, device=self.device)[:, None]
        return GroupSelection(rows, valid, distances, entropies, tags, seen, found=found, per_piece=per_piece)

    def aggregate(
        self, selection: GroupSelection, weights: Tensor, *, staged: GroupStaged | None = None
    ) -> Tensor:
        """The weighted sums of the gradients that this process's queries have selected; as ``Memory``."""
        peers, pieces, found = self.peers, self.pieces, selection.found
        sizes, asked = peers.sizes, len(weights)
        per_piece = selection.per_piece
        spread = weights.new_zeros(asked, pieces.queues_each * peers.size * per_piece)
        weights = torch.where(selection.valid, weights, 0).flatten(1)
        spread.scatter_(1, selection.rows.flatten(1), weights)
        by_owner = spread.view(asked, pieces.queues_each, peers.size, per_piece).movedim(2, 0).flatten(0, 1)
        (back,) = peers.exchange([by_owner], [asked] * peers.size, sizes, "sending weights to owners")
        back = back[:, :, : found.rows.shape[2]]
        sums = self.share.aggregate(found, back, staged=None if staged is None else staged.owned)
        (parts,) = peers.exchange([sums], sizes, [asked] * peers.size, "sending sums of gradients back")
        total = parts.new_zeros(asked, parts.shape[1])
        for part in parts.unflatten(0, (peers.size, asked)):
            total += part
        return total

    def _to_askers(self, columns: list[Tensor]) -> list[Tensor]:
        """What was found for all queries here, to those who asked.

        Returns:
            What was found for this process's queries anywhere: ``(queries, queues, candidates)`` per column.
        """
        peers, pieces, sizes = self.peers, self.pieces, self.peers.sizes
        asked = sizes[peers.rank]
        arrived = peers.exchange(columns, sizes, [asked] * peers.size, "sending candidates to askers")
        parts = pieces.queues * pieces.per_queue

        def by_queue(column: Tensor) -> Tensor:
            by_piece: Tensor = column.unflatten(0, (peers.size, asked)).movedim(0, 2).flatten(1, 2)
            return by_piece[:, :parts].reshape(asked, pieces.queues, pieces.per_queue * column.shape[2])

        return [by_queue(column) for column in arrived]

    def _most_in_a_queue(self, arriving: int | None) -> int:
        """How many entries of a queue a query may see: a width that one process would look at, too."""
        fullest = self.plan.capacity if self.share.fixed_shapes else int(self._counts.max())
        return max(1, min(self.plan.capacity, fullest)) + (arriving or 0)

    # -- content ------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything."""
        self.share.clear()
        self._counts.zero_()
        self.seen = 0
        self._gathered = self._underway = None

    def state(self) -> dict[str, Tensor]:
        """Copies of what this process holds, as a share of the whole memory's state."""
        return shares.as_share(self.share.state(), self.plan, self.peers.rank, self._counts, self.seen)

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless ``state`` is that of a whole memory, or this process's share of one."""
        if shares.SHARE in state:
            shares.expect_share(state, self.peers.rank, self.peers.size)
        self.share.check(shares.part_of(state, self.plan, self.peers.rank))

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over this process's part of a whole state or share; a ValueError changes nothing."""
        self.check(state)
        self.share.restore(shares.part_of(state, self.plan, self.peers.rank))
        self._counts.copy_(state["counts"])
        self.seen = int(state["seen"])
        self._gathered = self._underway = None

    def join(self, states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The share of this process in the memory whose shares ``states`` are."""
        return shares.joined(states, self.plan, self.peers.rank)


def memory_for(plan: MemoryPlan, peers: Peers | None) -> Memory:
    """The memory of a process, or that of the group that it belongs to, which is used in the same way."""
    return Memory(plan) if peers is None else cast(Memory, GroupMemory(plan, peers))


def _one_not_kept(owned: Staged) -> Staged:
    """A staged batch that leaves no trace, in place of an empty one."""
    return Staged(**{name: one.new_zeros(1, *one.shape[1:]) for name, one in vars(owned).items()})


def _padded(column: Tensor, width: int) -> Tensor:
    """``(B, queues, width)``; what is missing is False, 0 or, for scores, never looked at."""
    return F.pad(column, (0, width - column.shape[2]))


def _best_places(candidates: list[Tensor], wanted: int, ranked: bool) -> Tensor:
    """Which candidates of each queue to take: the first ones, or the best of several pieces."""
    valid = candidates[0]
    wanted = min(wanted, valid.shape[2])
    if ranked:
        return candidates[-1].masked_fill(~valid, -torch.inf).topk(wanted, dim=2).indices
    return torch.arange(wanted, device=valid.device).expand(*valid.shape[:2], -1)
