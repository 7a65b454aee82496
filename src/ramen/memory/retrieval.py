"""The class-split embedding-gradient memory: entries are retrieved from its queues and aggregated."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from ramen import kernels
from ramen.kernels import sums
from ramen.kernels.nearest import distances as distances_to
from ramen.kernels.nearest import nearest
from ramen.memory.codecs import Codec, SignCodec
from ramen.memory.queues import SPARE_ROW, Queues, Staged
from ramen.utils.numerics import aligned, pair_scores, running_counts


@dataclass(frozen=True)
class Selection:
    """What was retrieved, ``(queries, queues, k)`` each; where ``valid`` is False a queue had no more."""

    rows: Tensor
    valid: Tensor
    distances: Tensor
    entropies: Tensor
    tags: Tensor
    numbers: Tensor


class Memory(Queues):
    """The queues of ``Queues``, with retrieval.

    In a group of processes each has all entries, and retrieves for its own images.
    """

    def recordable_on(self, device: torch.device) -> bool:
        waits = self.device.type != "cpu" and not kernels.usable_on(self.device)  # in sums of rows
        one_device = self.gradient_device == self.device == device
        return one_device and self.plan.fifo == "exact" and not waits

    def recording_key(self) -> Hashable:
        return self.generation, self.fixed_shapes

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
            topk: How many per queue; fewer if a queue has fewer.
            staged: The batch of the queries themselves, not inserted yet: then each query sees itself and
                what came before it, as if the images had arrived one by one.
            draw: A seed and the queries' stream numbers: choose uniformly at random instead of by similarity.
        """
        queries = queries.to(self.device, torch.float32)
        if staged is None and draw is None:
            embeddings = self._table.tensors["embeddings"]
            chosen, valid, distances = nearest(queries, embeddings, self._extent, self._held_rows(), topk)
        else:
            chosen, valid = self._chosen_one_by_one(queries, topk, staged, draw)
            distances = distances_to(queries, self._column("embeddings", staged), chosen)
        columns = {n: self._column(n, staged)[chosen] for n in ("entropies", "tags", "numbers")}
        return Selection(chosen, valid, distances, **columns)

    def aggregate(self, selection: Selection, weights: Tensor, *, staged: Staged | None = None) -> Tensor:
        """The weighted sum of the selected gradients, ``(B, G)`` in fp32.

        It is computed on the device of the gradients.

        Args:
            selection: The result of ``select``.
            weights: One per entry.
            staged: As given to ``select``.
        """
        there, extent = self.gradient_device, self._extent
        rows = selection.rows.flatten(1).to(there)
        weights = torch.where(selection.valid, weights, 0).flatten(1).to(there)
        in_use = slice(aligned(extent))
        stored, scales = self._table.tensors["gradients"][in_use], self._table.tensors["scales"][in_use]
        if staged is None:
            return weighted_sums(self.codec, stored, scales, rows, weights)
        own = rows >= extent
        past = rows.masked_fill(own, SPARE_ROW), weights.masked_fill(own, 0)
        new = (rows - extent).masked_fill(~own, 0), weights.masked_fill(~own, 0)
        found = weighted_sums(self.codec, stored, scales, *past)
        return found + weighted_sums(self.codec, staged.gradients, staged.scales, *new)

    def _chosen_one_by_one(
        self, queries: Tensor, topk: int, staged: Staged | None, draw: tuple[int, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """For queries that each see other entries, or entries that are drawn."""
        rows, visible = self._candidates(staged, len(queries))
        held = rows.clamp_min(SPARE_ROW)
        if draw is None:
            scores = (queries @ self._column("embeddings", staged).float().T)[:, held]
        else:
            seed, numbers = draw
            scores = pair_scores(seed, numbers.to(self.device), self._column("numbers", staged)[held])
        best = scores.masked_fill(~visible, -torch.inf).topk(min(topk, rows.shape[1]), dim=2)
        valid = best.values > -torch.inf
        chosen = rows.expand(len(queries), -1, -1).gather(2, best.indices)
        return torch.where(valid, chosen, SPARE_ROW), valid

    @property
    def _extent(self) -> int:
        """How many rows products and sums look at: those in use and, with fixed shapes, all the others.

        Rows that are not in use hold zeros on a GPU, and no slot points to them.
        """
        return self._table.allocated if self.fixed_shapes else int(self._index["used"])

    def _held_rows(self) -> Tensor:
        """The row in each slot of each queue, as far as any queue can be filled by now."""
        fullest = self._table.allocated if self.fixed_shapes else int(self._index["counts"].max())
        width = max(1, min(self.capacity, fullest))
        return self._index["table"][:-1].view(self.queues, self.capacity)[:, :width]

    def _candidates(self, staged: Staged | None, queries: int) -> tuple[Tensor, Tensor]:
        """Rows ``(queues, width)`` that may be chosen, and which query sees them."""
        rows = self._held_rows()
        if staged is None:
            return rows, (rows >= 0).expand(queries, -1, -1)
        own_rows = torch.arange(len(staged.queues), device=self.device).expand(self.queues, -1) + self._extent
        masks = self._visible_causally(staged, rows.shape[1])
        own = slice(queries) if self._peers is None else self._peers.own
        stored, batch = (mask[own] for mask in masks)
        return torch.cat([rows, own_rows], 1), torch.cat([stored & (rows >= 0), batch], 2)

    def _visible_causally(self, staged: Staged, width: int) -> tuple[Tensor, Tensor]:
        """What each image sees if entries are inserted one by one and images query in between.

        Returns:
            Two masks: ``(B, queues, width)`` over the first ``width`` places of the ring buffers before the
            batch, and ``(B, queues, B)`` over the batch itself. An entry is visible from its own arrival
            until ``capacity`` later entries have entered its queue.
        """
        queues, keep, counts = staged.queues, staged.keep, self._index["counts"]
        running = running_counts(queues, keep, len(counts))
        oldest_seen = counts + running - self.capacity  # (B, queues), as a sequence number of the queue
        place = torch.arange(width, device=queues.device)
        newest = counts[:, None] - 1
        stored_sequence = newest - (newest - place) % self.capacity  # negative if the place is still empty
        stored = (stored_sequence >= 0) & (stored_sequence >= oldest_seen[:, :, None])

        own_sequence = counts[queues] + running.gather(1, queues[:, None])[:, 0] - 1
        number = torch.arange(len(queues), device=queues.device)
        has_come = number <= number[:, None]
        in_queue = (queues == torch.arange(len(counts), device=queues.device)[:, None]) & keep
        batch = has_come[:, None, :] & in_queue & (own_sequence >= oldest_seen[:, :, None])
        return stored, batch

    def _column(self, name: str, staged: Staged | None) -> Tensor:
        """A column of the table, followed by the staged batch's as further rows."""
        column = self._table.tensors[name][: self._extent]
        return column if staged is None else torch.cat([column, getattr(staged, name)])


def weighted_sums(codec: Codec, stored: Tensor, scales: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """``out[q] = sum_s weights[q, s] * decode(row rows[q, s])``, ``(Q, G)`` in fp32, on one device.

    By a Triton kernel that reads the picked rows as they are stored, or in plain torch, which on a GPU waits
    for the device once.

    Args:
        codec: Of the rows.
        stored: ``(R, width)``.
        scales: Of all rows, as ``codec.encode`` gives them.
        rows: ``(Q, S)`` row numbers; a row may occur several times.
        weights: ``(Q, S)`` in fp32.
    """
    if not len(rows):
        return weights.new_zeros(0, codec.size)
    if not sums.uses_triton(weights.device):
        return codec.sum_rows(stored, scales, rows, weights)
    if isinstance(codec, SignCodec):
        tables = codec.blocks.tables(weights.device)
        units = sums.Units(tables.block, tables.start, tables.stop)
        return sums.sign_sums(units, stored, scales, rows, weights, codec.size)
    return sums.float_sums(stored, rows, weights * scales[rows])
