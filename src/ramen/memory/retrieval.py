"""The class-split embedding-gradient memory: entries are retrieved from its queues and aggregated."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ramen.kernels.nearest import distances as distances_to
from ramen.kernels.nearest import nearest
from ramen.memory import queue_order
from ramen.memory.fetch_ahead import FetchAhead, SideStream
from ramen.memory.plan import MemoryPlan
from ramen.memory.row_sums import best_way, weighted_sums
from ramen.memory.storage import SPARE_ROW, Staged, Storage
from ramen.utils.numerics import aligned
from ramen.utils.pair_scores import pair_scores, scores_of_pairs

_SCORED_AT_A_TIME = 1 << 22  # numbers of stored embeddings


@dataclass(frozen=True)
class Selection:
    """What was retrieved, ``(queries, queues, k)`` each; where ``valid`` is False a queue had no more."""

    rows: Tensor
    valid: Tensor
    distances: Tensor
    entropies: Tensor
    tags: Tensor
    numbers: Tensor


class Memory(Storage):
    """The queues of ``Storage``, with retrieval.

    Args:
        plan: Its queues, sizes, codec and devices.

    Attributes:
        fetches_ahead: Whether gradients in host memory may be fetched before they are asked for; switch it
            off to see what that gains.
        accumulate: What sums of gradients are computed and returned in: fp32, or fp64, which takes longer.
            Sums in fp64 that are rounded to fp32 afterwards do not depend on the order of what they add.
    """

    def __init__(self, plan: MemoryPlan) -> None:
        self.fetches_ahead = True
        self.accumulate = torch.float32
        super().__init__(plan)

    # -- recording and fetching ahead ---------------------------------------------------------------

    @property
    def recordable(self) -> bool:
        """Whether the host never looks at what a GPU has computed, except in ``admit``."""
        here = self._table.tensors["scales"].device  # with its index
        way = best_way(self.codec, self._table.tensors["gradients"], here)
        by_torch = way == "gathered" or self.accumulate == torch.float64
        return self.fifo == "exact" and (here.type == "cpu" or not by_torch)

    def recordable_on(self, device: torch.device) -> bool:
        """Whether a CUDA graph on ``device`` may hold all that a step does with it, ``admit`` excepted."""
        return self.recordable and self.device == device

    def recording_key(self) -> Hashable:
        """A recording is valid only as long as this stays equal."""
        return self.generation, self.fetches_ahead, self.fixed_shapes, self.accumulate

    def fetch_ahead(self, queries: int, topk: int) -> FetchAhead | None:
        """Fetch gradients that so many queries will probably ``select``, while something else is computed.

        They are guessed from the memory before the batch has entered, and must have arrived before ``put``
        overwrites some of them; ``aggregate`` uses them, with the same sums. None if the gradients are not in
        host memory that a GPU reads by itself.
        """
        if not (self.fetches_ahead and self.fixed_shapes):
            return None
        if not (self.columns["gradients"].shared and self.recordable):
            return None

        def guess(embeddings: Tensor) -> Tensor:
            return self._nearest(embeddings, topk)[0]

        stored, picks = self._table.tensors["gradients"], queries * self.queues * topk
        self._ahead = FetchAhead(self.codec, stored, picks, guess, self._side_stream)
        return self._ahead

    @cached_property
    def _side_stream(self) -> SideStream:
        return SideStream(self.device)

    # -- retrieval ----------------------------------------------------------------------------------

    def select(
        self,
        queries: Tensor,
        topk: int,
        *,
        staged: Staged | None = None,
        arrived: Tensor | None = None,
        draw: tuple[int, Tensor] | None = None,
    ) -> Selection:
        """The ``topk`` entries of every queue that are most similar to each query.

        Args:
            queries: Embeddings ``(B, d)``, fp32.
            topk: How many per queue; fewer if a queue has fewer.
            staged: The batch of the queries themselves, not inserted yet: then each query sees itself and
                what came before it, as if the images had arrived one by one.
            arrived: How many of the staged entries each query sees, if they are not those of the queries.
            draw: A seed and the queries' stream numbers: choose uniformly at random instead of by similarity.
        """
        if staged is None and draw is None:
            chosen, valid, distances = self._nearest(queries, topk)
        else:
            queries = queries.to(self.device, torch.float32)
            chosen, valid = self._chosen_one_by_one(queries, topk, staged, arrived, draw)
            distances = distances_to(queries, self._column("embeddings", staged), chosen)
        columns = {n: self._column(n, staged)[chosen] for n in ("entropies", "tags", "numbers")}
        return Selection(chosen, valid, distances, **columns)

    def aggregate(self, selection: Selection, weights: Tensor, *, staged: Staged | None = None) -> Tensor:
        """The weighted sum of the selected gradients, ``(B, G)`` in ``accumulate`` on the memory's device.

        Args:
            selection: The result of ``select``.
            weights: One per entry.
            staged: As given to ``select``.
        """
        rows, weights = selection.rows.flatten(1), torch.where(selection.valid, weights, 0).flatten(1)
        extent = self._extent
        ahead, self._ahead = self._ahead, None  # it is worth nothing to the next batch
        looked_at = slice(aligned(extent))
        stored, scales = self._table.tensors["gradients"][looked_at], self._table.tensors["scales"][looked_at]
        if staged is None and not self.fixed_shapes:
            return self.codec.sum_rows(stored, scales, rows, weights, self.accumulate)
        if staged is None:
            return self._sums(stored, scales, rows, weights, ahead)
        own = rows >= extent
        past = rows.masked_fill(own, SPARE_ROW), weights.masked_fill(own, 0)
        new = (rows - extent).masked_fill(~own, 0), weights.masked_fill(~own, 0)
        sums = self._sums(stored, scales, *past, ahead)
        return sums + self._sums(staged.gradients, staged.scales, *new, None)

    def _sums(
        self, stored: Tensor, scales: Tensor, rows: Tensor, weights: Tensor, ahead: FetchAhead | None
    ) -> Tensor:
        if self.accumulate == torch.float64:
            return self.codec.sum_rows(stored, scales, rows, weights, self.accumulate)
        return weighted_sums(self.codec, stored, scales, rows, weights, ahead=ahead)

    def scores(
        self,
        queries: Tensor,
        selection: Selection,
        *,
        staged: Staged | None = None,
        draw: tuple[int, Tensor] | None = None,
    ) -> Tensor:
        """What the selected entries were ranked by, in fp64; -inf if there is none. Arguments as ``select``.

        Each is computed by itself, so that those of entries in different memories can be compared.
        """
        if draw is not None:
            seed, numbers = draw
            found = scores_of_pairs(seed, numbers.to(self.device)[:, None, None], selection.numbers)
        else:
            queries, column = queries.to(self.device).double(), self._column("embeddings", staged)
            few = max(1, _SCORED_AT_A_TIME // max(1, selection.rows[:1].numel() * queries.shape[1]))
            pieces = zip(queries.split(few), selection.rows.split(few), strict=True)
            found = torch.cat([torch.einsum("bd,bqkd->bqk", q, column[rows].double()) for q, rows in pieces])
        return found.masked_fill(~selection.valid, -torch.inf)

    def _nearest(self, queries: Tensor, topk: int) -> tuple[Tensor, Tensor, Tensor]:
        queries = queries.to(self.device, torch.float32)
        return nearest(queries, self._table.tensors["embeddings"], self._extent, self._held_rows(), topk)

    def _chosen_one_by_one(
        self,
        queries: Tensor,
        topk: int,
        staged: Staged | None,
        arrived: Tensor | None,
        draw: tuple[int, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """For queries that each see other entries, or entries that are drawn."""
        rows, visible = self._candidates(staged, arrived, len(queries))
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

    def _candidates(
        self, staged: Staged | None, arrived: Tensor | None, queries: int
    ) -> tuple[Tensor, Tensor]:
        """Rows ``(queues, width)`` that may be chosen, and which query sees them."""
        rows = self._held_rows()
        if staged is None:
            return rows, (rows >= 0).expand(queries, -1, -1)
        counts, width = self._index["counts"], rows.shape[1]
        own_rows = torch.arange(len(staged.queues), device=self.device).expand(self.queues, -1) + self._extent
        if arrived is None:  # each query with its own entry
            arrived = torch.arange(1, queries + 1, device=self.device)
        masks = queue_order.visible_causally(
            staged.queues, staged.keep, counts, self.capacity, width, arrived
        )
        return torch.cat([rows, own_rows], 1), torch.cat(masks, 2)

    def _column(self, name: str, staged: Staged | None) -> Tensor:
        """A column of the table, followed by the staged batch's as further rows."""
        column = self._table.tensors[name][: self._extent]
        return column if staged is None else torch.cat([column, getattr(staged, name)])
