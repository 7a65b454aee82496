"""The class-split embedding-gradient memory: insert, select, aggregate.

One first-in-first-out queue for each class holds up to ``capacity`` entries: an image's embedding, its
gradient, its entropy, a tag, and its number in the stream. The entries of all queues share one pool of rows;
a table says which row is in which slot of which queue. So the pool is as large as the number of entries, not
as the largest queue times the classes, and it grows with use until every queue can be full.

Nothing here loops over classes, images or entries in Python, and nothing waits for a GPU, except when the
pool may have to grow and in the order of the published code (``fifo="float16"``). Row 0 of the pool belongs
to nobody: what must not be stored is written there, so that no shape depends on the data.

On a GPU no shape and no number of the host depends on how much has been stored either, while the pool keeps
its size, and all tensors stay where they are: a CUDA graph can hold ``fetch_ahead``, ``stage``, ``put``,
``select`` and ``aggregate``. The host's share of an insertion, ``admit``, stays outside.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ramen import kernels
from ramen.kernels.nearest import distances as distances_to
from ramen.kernels.nearest import nearest
from ramen.memory import codecs
from ramen.memory import queue_order as fifo_order
from ramen.memory.fetch_ahead import FetchAhead, SideStream
from ramen.memory.plan import MemoryPlan
from ramen.memory.row_sums import best_way, weighted_sums
from ramen.memory.row_table import RowPool, expect
from ramen.utils.byte_sizes import readable_bytes
from ramen.utils.devices import free_bytes
from ramen.utils.numerics import aligned, finite_rows, plain_numerics
from ramen.utils.pair_scores import pair_scores

_SPARE_ROW = 0
_LEAST_SHARE = 16  # with fixed shapes a pool starts with this part of its limit: a new size, a new graph


@dataclass(frozen=True)
class Staged:
    """A batch that is about to enter the memory, in stored form; ``keep`` marks what may enter."""

    queues: Tensor
    embeddings: Tensor
    gradients: Tensor
    scales: Tensor
    entropies: Tensor
    tags: Tensor
    numbers: Tensor
    keep: Tensor


@dataclass(frozen=True)
class Selection:
    """What was retrieved, ``(queries, queues, k)`` each; where ``valid`` is False a queue had no more."""

    rows: Tensor
    valid: Tensor
    distances: Tensor
    entropies: Tensor
    tags: Tensor
    numbers: Tensor


class Memory:
    """``queues`` queues of ``capacity`` entries each.

    Args:
        queues: How many queues; entries name theirs by its index.
        capacity: The most entries of one queue.
        embedding_size: Width of an embedding.
        gradient_size: Length of a gradient.
        codec: How gradients are stored, a name in ``ramen.memory.codecs.CODECS``.
        blocks: Lengths of the runs of a gradient whose values are alike in size, such as the parameters of
            one layer; packed codecs give each a scale of its own.
        fifo: ``"exact"``, or ``"float16"`` for the order of the published code (``memory.queue_order``).
        device: Where embeddings lie and retrieval runs.
        gradient_device: Where gradients lie; ``device`` if not given. In host memory beside a GPU they are
            page-locked, and the GPU fetches the rows that it needs.

    Attributes:
        seen: How many images have been offered so far, stored or not.
        generation: Another number whenever the tensors are other ones: what knows the old ones by their
            address, as a CUDA graph does, is worthless then.
        fixed_shapes: Whether shapes depend on the pool's size alone, not on how much of it is in use. So it
            is on a GPU; on a CPU the exact shapes cost nothing to know and less to compute.
        fetches_ahead: Whether gradients in host memory may be fetched before they are asked for; off to see
            what that brings.

    Raises:
        MemoryError: The full memory would not fit what is free on its devices.
    """

    def __init__(
        self,
        queues: int,
        capacity: int,
        embedding_size: int,
        gradient_size: int,
        *,
        codec: str = "fp16",
        blocks: Sequence[int] | None = None,
        fifo: str = "exact",
        device: torch.device | str = "cpu",
        gradient_device: torch.device | str | None = None,
    ) -> None:
        self.queues = queues
        self.capacity = capacity
        self.codec = codecs.create(codec, gradient_size, blocks)
        self.fifo = fifo
        self.device = torch.device(device)
        self.gradient_device = self.device if gradient_device is None else torch.device(gradient_device)
        sizes = queues, capacity, embedding_size, gradient_size
        self.plan = MemoryPlan(*sizes, codec, blocks, fifo, self.device, self.gradient_device)
        self.columns = self.plan.columns()
        self.fixed_shapes = self.device.type != "cpu"
        self.fetches_ahead = True
        self.generation = 0
        self._check_fits()
        self._check_speed()
        self.clear()

    def __repr__(self) -> str:
        places = ", ".join(f"{readable_bytes(n)} on {device}" for device, n in self.max_bytes().items())
        return f"Memory({self.queues} queues of {self.capacity}, codec {self.codec.name!r}, at most {places})"

    # -- size ---------------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """The most entries of all queues together."""
        return self.queues * self.capacity

    def max_bytes(self) -> dict[torch.device, int]:
        """What the memory takes when every queue is full, for each device it lies on."""
        return self.plan.max_bytes()

    def allocated_bytes(self) -> int:
        """What the memory takes now."""
        return self._pool.bytes() + sum(t.numel() * t.element_size() for t in self._index.values())

    def _check_fits(self) -> None:
        for device, needed in self.max_bytes().items():
            free = free_bytes(device)
            if free is not None and needed > free:
                raise MemoryError(
                    f"a memory of {self.queues} queues of capacity={self.capacity} can grow to "
                    f"{readable_bytes(needed)} on {device}, where {readable_bytes(free)} are free: lower "
                    "capacity, choose a smaller codec, or place the gradients elsewhere"
                )

    def _check_speed(self) -> None:
        packed = isinstance(self.codec, codecs.PackedCodec)
        split = self.gradient_device.type != self.device.type
        if self.device.type == "cuda" and (packed or split) and not kernels.available():
            warnings.warn(
                "Triton is not installed: gradients that are packed or lie on the CPU are collected by plain "
                "torch, which waits for the device in every step",
                stacklevel=3,
            )

    def __len__(self) -> int:
        return int(self._index["used"]) - 1

    # -- content ------------------------------------------------------------------------------------

    @plain_numerics()
    def clear(self) -> None:
        """Forget everything and give the rows back."""
        self.generation += 1
        self.seen = 0
        self._most_rows = 1  # rows that may be in use, the spare one included: an upper bound
        self._pool = RowPool(self.columns, aligned(self.slots + 1))
        self._index = {
            name: torch.zeros(shape, dtype=dtype, device=self.device)
            for name, (shape, dtype) in self.plan.index().items()
        }
        self._index["used"] += 1  # the spare row
        self._index["table"].fill_(-1)[-1] = _SPARE_ROW

    def state(self) -> dict[str, Tensor]:
        """Copies of all content; ``restore`` takes them back."""
        index = {name: tensor.clone() for name, tensor in self._index.items()}
        return {
            **self._pool.state(int(index["used"])),
            **index,
            "seen": torch.tensor(self.seen, device="cpu"),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take over the content that ``state`` gave; where it does not fit, say why and change nothing."""
        expected = {*self.columns, *self._index, "seen"}
        if state.keys() != expected:
            raise ValueError(f"the memory's state must hold {sorted(expected)}, got {sorted(state)}")
        expect("seen", state["seen"], torch.int64, ())
        for name, (shape, dtype) in self.plan.index().items():
            expect(name, state[name], dtype, shape)
        self._check_index({name: state[name].cpu() for name in self._index})
        rows, seen = int(state["used"]), int(state["seen"])
        pool = self._pool.restored(state, rows)
        self._index = {name: state[name].to(self.device, copy=True) for name in self._index}
        self._pool, self._most_rows, self.seen = pool, rows, seen
        self.generation += 1

    def _check_index(self, index: dict[str, Tensor]) -> None:
        """Every entry has one row, every row one entry, and every queue as many as it counts."""
        slots, counts, rows = index["table"][:-1], index["counts"], int(index["used"])
        held = slots[slots >= 0].sort().values
        filled = (slots.view(self.queues, self.capacity) >= 0).sum(1)
        in_order = torch.equal(held, torch.arange(1, rows, device="cpu")) and bool((slots >= -1).all())
        counted = torch.equal(filled, counts.clamp_max(self.capacity)) and bool((counts >= 0).all())
        if self.fifo == "float16":
            counted = counted and bool((counts <= self.capacity).all())
        if not (in_order and counted and index["table"][-1] == _SPARE_ROW):
            raise ValueError("the memory's state is damaged: its table, counts and rows do not fit together")

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """A block that leaves no trace and the same tensors, if nothing that is offered in it is kept.

        Before it, the memory takes all the room that it can ever need, and stays so large.
        """
        self._grow(self._pool.limit)
        before, spare_row = (self.seen, self._most_rows), self._pool.state(1)
        try:
            yield
        finally:
            self.seen, self._most_rows = before
            self._pool.put_back(spare_row)

    # -- insertion ----------------------------------------------------------------------------------

    def stage(
        self,
        queues: Tensor,
        embeddings: Tensor,
        gradients: Tensor,
        entropies: Tensor,
        tags: Tensor | None = None,
        keep: Tensor | None = None,
        numbers: Tensor | None = None,
    ) -> Staged:
        """Bring a batch into stored form. What holds a non-finite number is not kept.

        Without ``numbers`` the images are the next ones of the stream.
        """
        gradients = gradients.float()  # what fp32 cannot hold is not finite
        finite = finite_rows(gradients) & finite_rows(embeddings) & entropies.isfinite()
        keep = finite if keep is None else finite & keep
        tags = torch.full_like(queues, -1) if tags is None else tags
        if numbers is None:
            numbers = torch.arange(self.seen, self.seen + len(queues), device=self.device)
        # zeros in place of what is not kept: the spare row must stay harmless in sums
        stored, scales = self.codec.encode(torch.where(keep[:, None], gradients, 0))
        return Staged(
            queues=queues.to(self.device),
            embeddings=torch.where(keep[:, None], embeddings, 0).to(self.device, self.codec.embedding_dtype),
            gradients=stored.to(self.device),
            scales=scales.to(self.device),
            entropies=torch.where(keep, entropies, 0).to(self.device, torch.float32),
            tags=tags.to(self.device, torch.int64),
            numbers=numbers.to(self.device),
            keep=keep.to(self.device),
        )

    def insert(self, staged: Staged) -> None:
        """Put a staged batch into the queues, in its order; the oldest of a full queue make room."""
        self.admit(len(staged.queues))
        self.put(staged)

    def admit(self, batch: int) -> range:
        """Make room for a batch and count it: the host's share of an insertion; ``put`` must follow.

        Returns:
            The batch's numbers in the stream. They are taken, and so are its rows: should the insertion fail
            halfway, what it has left in the memory is still counted and numbered like nothing else.
        """
        numbers = range(self.seen, self.seen + batch)
        self._reserve(batch)
        self._most_rows = min(self.slots + 1, self._most_rows + batch)
        self.seen = numbers.stop
        return numbers

    def put(self, staged: Staged, ahead: FetchAhead | None = None) -> None:
        """The rest of an insertion, of a batch that was admitted.

        What came ``ahead`` of the rows that are overwritten here is not used any more.
        """
        batch = len(staged.queues)
        slots = self._assign_slots(staged)

        # Of several images that go through one slot within this batch, only the last one stays.
        position = torch.arange(batch, device=self.device)
        last = torch.full((self.slots + 1,), -1, device=self.device).scatter_reduce(
            0, slots, position, "amax"
        )
        source = last[slots]

        table, used = self._index["table"], self._index["used"]
        opens_row = (source == position) & (table[slots] < 0)
        new_rows = torch.where(opens_row, used + opens_row.cumsum(0) - 1, -1)
        table.scatter_reduce_(0, slots, new_rows, "amax")
        used += opens_row.sum()

        rows = table[slots]
        for name in self.columns:
            values: Tensor = getattr(staged, name)
            self._pool.write(rows, name, values[source])
        if ahead is not None:
            ahead.outdate(rows)

    def _assign_slots(self, staged: Staged) -> Tensor:
        counts = self._index["counts"]
        if self.fifo == "exact":
            return fifo_order.exact_slots(staged.queues, staged.keep, counts, self.capacity)
        ages = self._index["ages"]
        return fifo_order.float16_slots(staged.queues, staged.keep, staged.numbers, counts, ages)

    def _reserve(self, batch: int) -> None:
        """Make sure that the pool has rows for ``batch`` more entries."""
        if min(self._pool.limit, self._most_rows + batch) <= self._pool.allocated:
            return
        self._most_rows = int(self._index["used"])  # the bound may be loose: look before growing
        self._grow(min(self._pool.limit, self._most_rows + batch))

    def _grow(self, rows: int) -> None:
        if rows > self._pool.allocated:
            self.generation += 1
            least = self._pool.limit // _LEAST_SHARE if self.fixed_shapes else 1
            self._pool.reserve(max(rows, least))

    # -- retrieval ----------------------------------------------------------------------------------

    @property
    def recordable(self) -> bool:
        """Whether the host never looks at what a GPU has computed, ``admit`` aside: a graph may hold it."""
        here = self._pool["scales"].device  # with its index
        by_torch = best_way(self.codec, self._pool["gradients"], here) == "gathered"
        return self.fifo == "exact" and (here.type == "cpu" or not by_torch)

    def fetch_ahead(self, topk: int) -> FetchAhead | None:
        """For a batch that will ``select`` so many: its likely gradients come while something is computed.

        They are guessed from the memory as it is before the batch has entered, and must have come before
        ``put`` overwrites some of them. None where they do not lie in host memory that a GPU reads by itself.
        """
        shared = self.columns["gradients"].shared and self.fixed_shapes and self.recordable
        if not (self.fetches_ahead and shared):
            return None

        def guess(queries: Tensor) -> Tensor:
            return self._nearest(queries, topk)[0]

        return FetchAhead(self.codec, self._pool["gradients"], self.queues * topk, guess, self._side_stream)

    @cached_property
    def _side_stream(self) -> SideStream:
        return SideStream(self.device)

    def select(
        self,
        queries: Tensor,
        topk: int,
        *,
        staged: Staged | None = None,
        draw: tuple[int, Tensor] | None = None,
    ) -> Selection:
        """The ``topk`` entries of every queue that are most similar to each query.

        Args:
            queries: Embeddings ``(B, d)``, fp32.
            topk: How many of each queue; fewer where a queue has fewer.
            staged: The batch of the queries themselves, not inserted yet: then each query sees itself and
                what came before it, as if the images had arrived one by one.
            draw: A seed and the queries' stream numbers: choose uniformly at random instead of by similarity.
        """
        if staged is None and draw is None:
            chosen, valid, distances = self._nearest(queries, topk)
        else:
            queries = queries.to(self.device, torch.float32)
            chosen, valid = self._chosen_one_by_one(queries, topk, staged, draw)
            distances = distances_to(queries, self._column("embeddings", staged), chosen)
        columns = {n: self._column(n, staged)[chosen] for n in ("entropies", "tags", "numbers")}
        return Selection(chosen, valid, distances, **columns)

    def _nearest(self, queries: Tensor, topk: int) -> tuple[Tensor, Tensor, Tensor]:
        queries = queries.to(self.device, torch.float32)
        return nearest(queries, self._pool["embeddings"], self._extent, self._held_rows(), topk)

    def _chosen_one_by_one(
        self, queries: Tensor, topk: int, staged: Staged | None, draw: tuple[int, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Where every query sees other entries, or entries are drawn."""
        rows, visible = self._candidates(staged, len(queries))
        held = rows.clamp_min(_SPARE_ROW)
        if draw is None:
            scores = (queries @ self._column("embeddings", staged).float().T)[:, held]
        else:
            seed, numbers = draw
            scores = pair_scores(seed, numbers.to(self.device), self._column("numbers", staged)[held])
        best = scores.masked_fill(~visible, -torch.inf).topk(min(topk, rows.shape[1]), dim=2)
        valid = best.values > -torch.inf
        chosen = rows.expand(len(queries), -1, -1).gather(2, best.indices)
        return torch.where(valid, chosen, _SPARE_ROW), valid

    @property
    def _extent(self) -> int:
        """How many rows products and sums look at: those in use and, with fixed shapes, all the others.

        Rows that are not in use hold zeros on a GPU, and no slot points to them.
        """
        return self._pool.allocated if self.fixed_shapes else int(self._index["used"])

    def _held_rows(self) -> Tensor:
        """The row in each slot of each queue, as far as any queue can be filled by now."""
        fullest = self._pool.allocated if self.fixed_shapes else int(self._index["counts"].max())
        width = max(1, min(self.capacity, fullest))
        return self._index["table"][:-1].view(self.queues, self.capacity)[:, :width]

    def _candidates(self, staged: Staged | None, queries: int) -> tuple[Tensor, Tensor]:
        """Rows ``(queues, width)`` that may be chosen, and which query sees them."""
        rows = self._held_rows()
        if staged is None:
            return rows, (rows >= 0).expand(queries, -1, -1)
        counts, width = self._index["counts"], rows.shape[1]
        own_rows = self._extent + torch.arange(queries, device=self.device).expand(self.queues, -1)
        masks = fifo_order.visible_causally(staged.queues, staged.keep, counts, self.capacity, width)
        return torch.cat([rows, own_rows], 1), torch.cat(masks, 2)

    def _column(self, name: str, staged: Staged | None) -> Tensor:
        """A column of the pool; behind it, as further rows, the staged batch's."""
        column = self._pool[name][: self._extent]
        return column if staged is None else torch.cat([column, getattr(staged, name)])

    def aggregate(
        self,
        selection: Selection,
        weights: Tensor,
        *,
        staged: Staged | None = None,
        ahead: FetchAhead | None = None,
    ) -> Tensor:
        """The weighted sum of the selected gradients, ``(B, G)`` in fp32 on the memory's device.

        Args:
            selection: What ``select`` gave.
            weights: Of each entry.
            staged: As given to ``select``.
            ahead: What was fetched before; ``put`` must have been told of it too. The sum is the same.
        """
        rows, weights = selection.rows.flatten(1), torch.where(selection.valid, weights, 0).flatten(1)
        extent = self._extent
        looked_at = slice(aligned(extent))
        stored, scales = self._pool["gradients"][looked_at], self._pool["scales"][looked_at]
        if staged is None:
            return weighted_sums(self.codec, stored, scales, rows, weights, ahead=ahead)
        own = rows >= extent
        past = rows.masked_fill(own, _SPARE_ROW), weights.masked_fill(own, 0)
        new = (rows - extent).masked_fill(~own, 0), weights.masked_fill(~own, 0)
        sums = weighted_sums(self.codec, stored, scales, *past, ahead=ahead)
        return sums + weighted_sums(self.codec, staged.gradients, staged.scales, *new)
