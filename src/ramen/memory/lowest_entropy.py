"""A memory of the most confident images: for each predicted class, those of lowest entropy.

TDA's caches and DMN's dynamic memory are of this kind. An image enters the slots of its class while there is
room; later it only replaces the entry with the largest entropy, if its own entropy is strictly smaller. This
keeps the first ``capacity`` entries by (entropy, arrival). What an image would find if images came one at a
time can therefore be computed for a whole batch, by counting how many entries rank ahead of each: nothing
here loops over images, and nothing waits for a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ramen.memory.base import StreamMemory, expect, expect_at_least, expect_finite, expect_names
from ramen.memory.rows import ColumnSpec
from ramen.utils.checks import readable_bytes
from ramen.utils.devices import free_bytes
from ramen.utils.numerics import plain_numerics

_ROUNDING = 1e-3  # an entropy near 0 may come out a little below it


@dataclass(frozen=True)
class Arrivals:
    """A batch in order of arrival; images that ``keep`` excludes are neither stored nor seen by others."""

    labels: Tensor  # (B,)
    entropies: Tensor  # (B,), finite for kept images
    embeddings: Tensor  # (B, d) unit vectors, finite everywhere
    keep: Tensor  # (B,)

    def keeping(self, keep: Tensor) -> "Arrivals":
        """The same batch, of which other images may be stored; what has been computed is shared."""
        other = Arrivals(self.labels, self.entropies, self.embeddings, keep)
        shared = (
            vars(self).keys() - vars(other).keys()
        )  # cached properties, none of which depends on ``keep``
        vars(other).update({name: vars(self)[name] for name in shared})
        return other

    def of_class(self, classes: int) -> Tensor:
        """``(B, classes)``: 1 for the predicted class of each image, else 0."""
        every = torch.arange(classes, device=self.labels.device)
        return (self.labels[:, None] == every).to(self.embeddings.dtype)

    @cached_property
    def similarities(self) -> Tensor:
        """Of all pairs of images, ``(B, B)``."""
        return self.embeddings @ self.embeddings.T

    @cached_property
    def later(self) -> Tensor:
        """``(B, B)``: whether the image of the column arrives after that of the row."""
        return torch.ones_like(self.similarities, dtype=torch.bool).triu(1)

    @cached_property
    def ranks_ahead(self) -> Tensor:
        """``(B, B)``: whether the row's image is of the column's class and ranks ahead of it.

        It does with a smaller entropy, or with the same one if it arrives earlier.
        """
        row, column = self.entropies[:, None], self.entropies
        surer = (row < column) | (self.later & (row == column))
        return (self.labels[:, None] == self.labels) & surer


@dataclass(frozen=True)
class Ranks:
    """How many entries of its class rank ahead of each one, after each arrival of a batch."""

    stored: Tensor  # (B, classes, capacity): of the slots before the batch
    batch: Tensor  # (B, B): of the images of the batch, in its columns
    arrived: Tensor  # (classes,): images of the batch that enter


@dataclass(frozen=True)
class Recall:
    """What each image of a batch finds, including itself and earlier images of the batch.

    Weights are exp(-beta (1 - similarity)), and 0 for entries that are not in the memory at that time.
    """

    stored: Tensor  # similarities (B, classes, capacity) with the slots before the batch
    stored_weights: Tensor
    batch: Tensor  # similarities (B, B) with the images of the batch
    batch_weights: Tensor
    ranks: Ranks


class LowestEntropyMemory(StreamMemory):
    """``capacity`` slots for each of ``classes`` classes, in order of (entropy, arrival).

    Args:
        classes: How many classes.
        capacity: The most entries of one class.
        columns: What is stored per entry besides its entropy: "embeddings", and more if needed.

    Raises:
        MemoryError: It does not fit into the free memory of its device.
    """

    @plain_numerics()
    def __init__(self, classes: int, capacity: int, columns: dict[str, ColumnSpec]) -> None:
        self.classes = classes
        self.capacity = capacity
        embeddings = columns["embeddings"]
        self.device = embeddings.device
        self.columns = columns | {"entropies": ColumnSpec(embeddings.dtype, self.device)}
        needed, free = self.most_bytes(), free_bytes(self.device)
        if free is not None and needed > free:
            raise MemoryError(
                f"{classes} classes with capacity={capacity} take {readable_bytes(needed)} on "
                f"{self.device}, but only {readable_bytes(free)} are free: lower the capacity"
            )
        self._counts = torch.zeros(classes, dtype=torch.int64, device=self.device)
        self._tables = {
            name: torch.zeros(self._shape(column), dtype=column.dtype, device=self.device)
            for name, column in self.columns.items()
        }

    def recordable_on(self, device: torch.device) -> bool:
        return self.device == device

    def most_bytes(self) -> int:
        counts = self.classes * torch.int64.itemsize
        slots = self.classes * self.capacity
        return counts + slots * sum(column.row_bytes for column in self.columns.values())

    def fill(self) -> tuple[int, int]:
        return int(self._counts.sum()), self.classes * self.capacity

    def __getitem__(self, name: str) -> Tensor:
        """A column, ``(classes, capacity, ...)``; zeros in empty slots."""
        return self._tables[name]

    @property
    def filled(self) -> Tensor:
        """Which slots hold an entry, ``(classes, capacity)``."""
        return torch.arange(self.capacity, device=self.device) < self._counts[:, None]

    # -- reading and writing ------------------------------------------------------------------------

    def recall(self, batch: Arrivals, beta: float) -> Recall:
        """What each image finds if images enter one at a time and each queries right after it enters.

        An entry is there as long as fewer than ``capacity`` entries of its class rank ahead of it.
        """
        keys, mates = self["embeddings"].flatten(0, 1), batch.similarities
        stored = (batch.embeddings @ keys.T).view(-1, self.classes, self.capacity)
        ranks = self._ranks(batch)
        sees_stored = self.filled & (ranks.stored < self.capacity)
        sees_mates = batch.keep & ~batch.later & (ranks.batch < self.capacity)
        return Recall(
            stored,
            torch.where(sees_stored, torch.exp(-beta * (1 - stored)), 0),
            mates,
            torch.where(sees_mates, torch.exp(-beta * (1 - mates)), 0),
            ranks,
        )

    def _ranks(self, batch: Arrivals) -> Ranks:
        """Ahead of a stored entry are the slots before its own, and later arrivals of smaller entropy."""
        labels, entropies = batch.labels, batch.entropies
        enters = batch.of_class(self.classes).bool() & batch.keep[:, None]
        overtakes = enters[:, :, None] & (entropies[:, None, None] < self["entropies"])
        slot = torch.arange(self.capacity, device=self.device)
        # in a tie, the earlier one is ahead
        stored_ahead = (self.filled[labels] & (self["entropies"][labels] <= entropies[:, None])).sum(1)
        mates_ahead = (batch.ranks_ahead & batch.keep[:, None]).cumsum(0)
        return Ranks(slot + overtakes.cumsum(0, dtype=torch.int32), stored_ahead + mates_ahead, enters.sum(0))

    def insert(self, batch: Arrivals, ranks: Ranks | None = None, **values: Tensor) -> None:
        """Insert a batch: each entry goes to the slot of its rank, or out.

        Args:
            batch: In order of arrival.
            ranks: Those of the batch's ``recall``, if there was one.
            values: The columns besides embeddings and entropies, one row per image.
        """
        values |= {"embeddings": batch.embeddings, "entropies": batch.entropies}
        ranks = self._ranks(batch) if ranks is None else ranks
        capacity, out = self.capacity, self.classes * self.capacity  # one past the last slot
        stored_rank, batch_rank = ranks.stored[-1], ranks.batch[-1]
        first = torch.arange(0, out, capacity, device=self.device)  # slot of each class
        stays = self.filled & (stored_rank < capacity)
        old_slots = torch.where(stays, first[:, None] + stored_rank, out).flatten()
        enters = batch.keep & (batch_rank < capacity)
        new_slots = torch.where(enters, first[batch.labels] + batch_rank, out)
        for name, table in self._tables.items():
            rows = table.flatten(0, 1)
            new = rows.new_zeros(out + 1, *rows.shape[1:])
            new[old_slots], new[new_slots] = rows, values[name]
            rows.copy_(new[:-1])
        self._counts.add_(ranks.arrived).clamp_max_(capacity)

    # -- state --------------------------------------------------------------------------------------

    def clear(self) -> None:
        for tensor in (self._counts, *self._tables.values()):
            tensor.zero_()

    def _shape(self, column: ColumnSpec) -> tuple[int, ...]:
        return (self.classes, self.capacity, *column.row_shape)

    def state(self) -> dict[str, Tensor]:
        return {name: table.clone() for name, table in ({"counts": self._counts} | self._tables).items()}

    def check(self, state: Mapping[str, Tensor]) -> None:
        expect_names("the memory's state", state, {"counts", *self.columns})
        expect("counts", state["counts"], torch.int64, (self.classes,))
        for name, column in self.columns.items():
            expect(name, state[name], column.dtype, self._shape(column))
            expect_finite(name, state[name])
        expect_at_least("entropies", state["entropies"], -_ROUNDING)
        counts, entropies = state["counts"].cpu(), state["entropies"].cpu()
        if not ((counts >= 0) & (counts <= self.capacity)).all():
            raise ValueError(f"counts in the state must be between 0 and capacity={self.capacity}")
        held = torch.arange(self.capacity, device="cpu") < counts[:, None]
        if (entropies.diff(dim=1) < 0)[held[:, 1:]].any():
            raise ValueError(
                "the memory's state is damaged: its slots are not in the order of their entropies"
            )

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.check(state)
        self._counts.copy_(state["counts"])
        for name, table in self._tables.items():
            table.copy_(state[name])
