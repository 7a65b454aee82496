"""The storage of the class-split embedding-gradient memory: where entries are kept, and how they enter.

One first-in-first-out queue per class holds up to ``capacity`` entries: an image's embedding, its gradient,
its entropy, a tag, and its number in the stream. The entries of all queues share one table of rows; an index
says which row is in which slot of which queue. So the table is as large as the number of entries, not as the
largest queue times the classes, and it grows with use until every queue can be full.

Nothing here loops over classes, images or entries in Python, and nothing waits for a GPU, except when the
table may have to grow and in the order of the published code (``fifo="float16"``). Row 0 of the table belongs
to no entry: what must not be stored is written there, so that no shape depends on the data.

On a GPU no shape and no number of the host depends on how much has been stored either, as long as the table
keeps its size, and all tensors stay at their address: a CUDA graph can hold ``stage`` and ``put``. The host's
share of an insertion, ``admit``, stays outside.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ramen import kernels
from ramen.memory import codecs, published_order
from ramen.memory.base import SHARES, Patch, StreamMemory, expect, expect_at_least, expect_names
from ramen.memory.plan import MemoryPlan
from ramen.memory.rows import RowTable
from ramen.utils.checks import readable_bytes
from ramen.utils.devices import free_bytes
from ramen.utils.distributed import Peers
from ramen.utils.numerics import aligned, finite_rows, plain_numerics, running_counts

SPARE_ROW = 0
_LEAST_SHARE = 16  # with fixed shapes a table starts at this fraction of its limit: a new size, a new graph


@dataclass(frozen=True)
class Staged:
    """A batch that is about to enter the memory, in stored form; in a group, the global batch."""

    queues: Tensor
    embeddings: Tensor
    gradients: Tensor
    scales: Tensor
    entropies: Tensor
    tags: Tensor
    numbers: Tensor
    keep: Tensor  # what may enter
    # which entries are those of this process's images
    own: slice = field(default_factory=lambda: slice(None))


class Queues(StreamMemory):
    """The queues of a memory, without the search in them (``ramen.memory.retrieval.Memory``).

    Args:
        plan: Its queues, sizes, codec and devices.
        peers: The processes of a group, each of which keeps all entries: it brings its own images, and gets
            the rows of the others in stored form.

    Attributes:
        seen: How many images have been offered so far, stored or not.
        generation: Changes whenever tensors are replaced by others: whatever knows the old ones by their
            address, such as a CUDA graph, is worthless then.
        fixed_shapes: Whether shapes depend on the table's size alone, not on how much of it is in use. This
            is so on a GPU; on a CPU the exact shapes cost nothing to know and less to compute.

    Raises:
        MemoryError: The full memory would not fit what is free on its devices.
    """

    def __init__(self, plan: MemoryPlan, peers: Peers | None = None) -> None:
        self.plan, self._peers = plan, peers
        self.queues, self.capacity, self.slots, self.fifo = plan.queues, plan.capacity, plan.slots, plan.fifo
        self.codec = codecs.create(plan.codec, plan.gradient_size, plan.blocks)
        self.device = plan.device
        self.gradient_device = plan.gradient_device or plan.device
        self.columns = plan.columns()
        self.fixed_shapes = self.device.type != "cpu"
        self.generation = 0
        self._check_fits()
        self._check_speed()
        self.clear()

    def __repr__(self) -> str:
        places = ", ".join(f"{readable_bytes(n)} on {device}" for device, n in self.max_bytes().items())
        return f"Memory({self.queues} queues of {self.capacity}, codec {self.codec.name!r}, at most {places})"

    def __len__(self) -> int:
        return int(self._index["used"]) - 1

    # -- size ---------------------------------------------------------------------------------------

    def max_bytes(self) -> dict[torch.device, int]:
        """What it takes on each of its devices when every queue is full."""
        return self.plan.max_bytes()

    def most_bytes(self) -> int:
        return sum(self.max_bytes().values())

    def allocated_bytes(self) -> int:
        return self._table.bytes() + sum(t.numel() * t.element_size() for t in self._index.values())

    def fill(self) -> tuple[int, int]:
        return len(self), self.slots

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
        if self.device.type == "cuda" and not kernels.available():
            warnings.warn(
                "Triton is not installed: gradients are collected by plain torch, which waits for the device "
                "in every step",
                stacklevel=4,
            )

    # -- content ------------------------------------------------------------------------------------

    @plain_numerics()
    def clear(self) -> None:
        self.generation += 1
        self.seen = 0
        self._most_rows = 1  # rows that may be in use, the spare one included: an upper bound
        self._slots: Tensor | None = None
        self._admitted: range | None = None  # numbers of a batch that ``put`` has not stored yet
        self._announced: tuple[Tensor | None, Tensor | None] = None, None
        self._table = RowTable(self.columns, aligned(self.slots + 1))
        self._index = {
            name: torch.zeros(shape, dtype=dtype, device=self.device)
            for name, (shape, dtype) in self.plan.index().items()
        }
        self._index["used"] += 1  # the spare row
        self._index["table"].fill_(-1)[-1] = SPARE_ROW

    def state(self) -> dict[str, Tensor]:
        index = {name: tensor.clone() for name, tensor in self._index.items()}
        return {
            **self._table.state(int(index["used"])),
            **index,
            "seen": torch.tensor(self.seen, device="cpu"),
        }

    def check(self, state: Mapping[str, Tensor]) -> None:
        if "share" in state:
            raise ValueError(SHARES)
        expect_names("the memory's state", state, {*self.columns, *self._index, "seen"})
        expect("seen", state["seen"], torch.int64, ())
        expect_at_least("seen", state["seen"], 0)
        for name, (shape, dtype) in self.plan.index().items():
            expect(name, state[name], dtype, shape)
        self._check_index({name: state[name].cpu() for name in self._index})
        self._table.check(state, int(state["used"]))
        for name in ("entropies", "scales", "numbers"):
            expect_at_least(name, state[name], 0)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.check(state)
        rows = int(state["used"])
        table = self._table.restored(state, rows)
        self._index = {name: state[name].to(self.device, copy=True) for name in self._index}
        self._table, self._most_rows, self.seen = table, rows, int(state["seen"])
        self._slots = None
        self.generation += 1

    def _check_index(self, index: Mapping[str, Tensor]) -> None:
        """Every entry has one row, every row one entry, and every queue as many as it counts."""
        slots, counts, rows = index["table"][:-1], index["counts"], int(index["used"])
        held = slots[slots >= 0].sort().values
        filled = (slots.view(self.queues, self.capacity) >= 0).sum(1)
        one_row_each = 1 <= rows <= len(slots) + 1 and torch.equal(held, torch.arange(1, rows, device="cpu"))
        counted = torch.equal(filled, counts.clamp_max(self.capacity)) and bool((counts >= 0).all())
        if self.fifo == "float16":  # whose stream numbers may be infinite
            ages = index["ages"]
            counted = counted and bool((counts <= self.capacity).all()) and bool((ages >= 0).all())
        in_order = one_row_each and bool((slots >= -1).all())
        if not (in_order and counted and index["table"][-1] == SPARE_ROW):
            raise ValueError("the memory's state is damaged: its table, counts and rows do not fit together")

    # -- content, row by row ------------------------------------------------------------------------

    def changed_rows(self, since: int) -> Tensor | None:
        """The rows that were written when the stream had ``since`` images or more, and the spare row."""
        if self.fifo == "float16":  # whose ages may change without an entry
            return None
        used = int(self._index["used"])
        changed = self._table.tensors["numbers"][:used] >= since
        changed[SPARE_ROW] = True
        return changed.nonzero()[:, 0].cpu()

    def patches(self, rows: Tensor) -> list[Patch]:
        """Columns by row, and the table by slot."""
        index, slots = rows.to(self.device), self._slots_by_row()
        return [
            Patch(rows, self._table.rows(index), len(slots), 0),
            Patch(slots[index].cpu(), {"table": rows}, self.slots + 1, -1),
        ]

    def _slots_by_row(self) -> Tensor:
        """The slot of each row, which never changes: looked up only when there are new rows."""
        used = int(self._index["used"])
        if self._slots is None or len(self._slots) != used:
            held = (self._index["table"] >= 0).nonzero()[:, 0]
            self._slots = torch.empty(used, dtype=torch.int64, device=self.device)
            self._slots[self._index["table"][held]] = held
        return self._slots

    def unpatched(self) -> dict[str, Tensor]:
        counters = {name: self._index[name].cpu().clone() for name in ("counts", "used")}
        return counters | {"seen": torch.tensor(self.seen, device="cpu")}

    def salvage(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A sound state with the entries that are left: each queue closes up, in the order of the stream."""
        slots = (state["table"][:-1] >= 0).nonzero()[:, 0]
        rows = state["table"][slots]
        order = state["numbers"][rows].argsort()
        queues, rows = slots[order] // self.capacity, rows[order]
        keep = torch.ones_like(queues, dtype=torch.bool)
        arrived = running_counts(queues, keep, self.queues)
        places = arrived.gather(1, queues[:, None])[:, 0] - 1 if len(queues) else queues
        table = torch.full_like(state["table"], -1)
        table[queues * self.capacity + places] = torch.arange(1, len(rows) + 1, device="cpu")
        table[-1] = SPARE_ROW
        spare = torch.tensor([SPARE_ROW], device="cpu")
        return {
            **{name: state[name][torch.cat([spare, rows])] for name in self.columns},
            "table": table,
            "counts": torch.bincount(queues, minlength=self.queues),
            "used": torch.tensor(len(rows) + 1, device="cpu"),
            "seen": state["seen"],
        }

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """A block that leaves no trace and the same tensors, provided that nothing in it may be stored.

        Before it, the memory allocates all that it can ever need, and keeps it.
        """
        self._grow(self._table.limit)
        before, spare_row = (self.seen, self._most_rows), self._table.state(1)
        try:
            yield
        finally:
            self.seen, self._most_rows = before
            self._table.put_back(spare_row)

    # -- insertion ----------------------------------------------------------------------------------

    def announce(self, tags: Tensor | None, numbers: Tensor | None = None) -> None:
        """Tags and, if they are on the device already, stream numbers of the next batch to be staged."""
        self._announced = tags, numbers

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
        """Bring a batch into stored form. Entries with a non-finite number are not kept.

        Args:
            queues: The queue of each entry.
            embeddings: Unit vectors ``(B, d)``.
            gradients: ``(B, G)``.
            entropies: ``(B,)``.
            tags: Those that were announced if not given, or else -1.
            keep: Which entries may be stored; all if not given.
            numbers: Those that were announced or admitted if not given, or else the next of the stream.
        """
        gradients = gradients.float()  # what fp32 cannot hold is not finite
        finite = finite_rows(gradients) & finite_rows(embeddings) & entropies.isfinite()
        keep = finite if keep is None else finite & keep
        announced_tags, announced_numbers = self._announced
        tags = announced_tags if tags is None else tags
        tags = torch.full_like(queues, -1) if tags is None else tags
        numbers = announced_numbers if numbers is None else numbers
        if numbers is None:
            first = self.seen if self._admitted is None else self._admitted.start
            numbers = torch.arange(first, first + len(queues), device=queues.device)
        self._announced = None, None
        # Zeros in place of what is not kept: the spare row must do no harm in sums.
        stored, scales = self.codec.encode(torch.where(keep[:, None], gradients, 0))
        columns = {
            "queues": queues,
            "embeddings": torch.where(keep[:, None], embeddings, 0).to(self.codec.embedding_dtype),
            "gradients": stored,
            "scales": scales,
            "entropies": torch.where(keep, entropies, 0).to(torch.float32),
            "tags": tags.to(torch.int64),
            "numbers": numbers,
            "keep": keep,
        }
        own = slice(None)
        if self._peers is not None:
            own = self._peers.own
            columns = self._peers.gather_columns(columns, "gathering what is to be stored")
        gradients_there = {"gradients", "scales"}
        for name, column in columns.items():
            columns[name] = column.to(self.gradient_device if name in gradients_there else self.device)
        return Staged(**columns, own=own)

    def insert(self, staged: Staged) -> None:
        """Put a staged batch into the queues, in its order; the oldest of a full queue make room."""
        self.admit(len(staged.queues))
        self.put(staged)

    def admit(self, batch: int) -> range:
        """Make room for a batch and count it: the host's share of an insertion; ``put`` must follow.

        Args:
            batch: Images of this process.

        Returns:
            Their numbers in the stream. They are taken, and so are their rows: should the insertion fail
            halfway, what it has left in the memory is still counted, and no later entry has its numbers.
        """
        own = slice(None)
        if self._peers is not None:
            own, batch = self._peers.own, sum(self._peers.sizes)
        first = self.seen
        self._reserve(batch)
        self._most_rows = min(self.slots + 1, self._most_rows + batch)
        self.seen += batch
        self._admitted = range(first, first + batch)[own]
        return self._admitted

    def put(self, staged: Staged) -> None:
        """The rest of an insertion, of a batch that was admitted."""
        self._admitted = None
        batch = len(staged.queues)
        slots = self._assign_slots(staged)

        # Of several images that pass through one slot within this batch, only the last one stays.
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
            column, values = self._table.tensors[name], getattr(staged, name)
            column[rows.to(column.device)] = values[source.to(column.device)]

    def _assign_slots(self, staged: Staged) -> Tensor:
        """The slot of each entry; the last slot of all is for what is not kept."""
        queues, keep, counts = staged.queues, staged.keep, self._index["counts"]
        if self.fifo == "float16":
            return published_order.slots(queues, keep, staged.numbers, counts, self._index["ages"])
        # Ring buffers: the n-th entry of a queue takes place n modulo capacity.
        arrived = running_counts(queues, keep, self.queues)
        sequence = counts[queues] + arrived.gather(1, queues[:, None])[:, 0] - 1
        counts += arrived[-1]
        return torch.where(keep, queues * self.capacity + sequence % self.capacity, self.slots)

    def _reserve(self, batch: int) -> None:
        """Make sure that the table has rows for ``batch`` more entries."""
        if min(self._table.limit, self._most_rows + batch) <= self._table.allocated:
            return
        self._most_rows = int(self._index["used"])  # the bound may be loose: look before growing
        self._grow(min(self._table.limit, self._most_rows + batch))

    def _grow(self, rows: int) -> None:
        if rows > self._table.allocated:
            self.generation += 1
            least = self._table.limit // _LEAST_SHARE if self.fixed_shapes else 1
            self._table.reserve(max(rows, least))
