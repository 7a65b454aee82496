"""Rows of a table in host memory that come over the bus before it is known which are needed.

What a batch retrieves is known once the batch has entered the memory, which is after its backward pass. Most
of it can be guessed as soon as its embeddings are known, and the backward pass does not use the bus: what is
guessed comes meanwhile. What was not guessed, or has been overwritten since, is fetched when it is needed, so
that a guess decides how long a step takes and nothing else.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from ramen.kernels.rows import copy_rows, copy_rows_sparingly
from ramen.memory.codecs import Codec

_MOST_BYTES = 2**30  # of the table on the GPU


class SideStream:
    """Work of a GPU beside its current stream; a CPU, with Triton's interpreter, does one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def fork(self) -> AbstractContextManager[object]:
        """A block whose kernels wait for all that the current stream does until now, and for nothing else."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        """What the current stream does from now on waits for all forks."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class FetchAhead:
    """What the queries of one batch will probably need of a table, fetched while something else is computed.

    Rows that do not fit are cut: their first columns come ahead.

    Args:
        codec: Of the rows.
        stored: The table, in host memory that the GPU sees.
        picks: The most rows that a query will need.
        guess: Which ones, ``(Q, picks)`` or fewer, given the queries.
        side: Where they are fetched.

    Attributes:
        table: The fetched rows, in the order of their numbers; behind them those that were fetched later.
    """

    table: Tensor

    def __init__(
        self, codec: Codec, stored: Tensor, picks: int, guess: Callable[[Tensor], Tensor], side: SideStream
    ) -> None:
        self._codec = codec
        self._stored = stored
        self._picks = picks
        self._guess = guess
        self._side = side

    @contextmanager
    def __call__(self, queries: Tensor) -> Iterator[None]:
        """A block during which rows come, and behind which they are there. Nobody may change them in it."""
        self._most = len(queries) * self._picks  # guessed, and as many again that are fetched later
        rows, device = len(self._stored), queries.device
        room = min(2 * self._most, rows)
        columns = next(self._codec.panels(room, _MOST_BYTES, unpacked=False))
        # All that outlives the fork belongs to the current stream, and is given back after it has joined.
        self.table = _empty_table(room, columns.stop, self._stored.dtype, device)
        if self.width == 0:
            yield
            return
        self._guessed = torch.zeros(rows, dtype=torch.int32, device=device)
        self._place = torch.empty(rows, dtype=torch.int64, device=device)
        try:
            with self._side.fork():
                self._start(queries)
            yield
        finally:  # also where the block fails: a recording has to end in order
            self._side.join()
        self._fresh = self._guessed.clone()

    def _start(self, queries: Tensor) -> None:
        self._guessed.scatter_(0, self._guess(queries).flatten(), 1)
        torch.sub(self._guessed.cumsum(0), 1, out=self._place)
        copy_rows_sparingly(self._stored[:, : self.width], self._guessed, self._place, self.table)

    @property
    def width(self) -> int:
        """How many columns of each row come ahead: 0 where the GPU has no room for any."""
        return self.table.shape[1]

    def outdate(self, rows: Tensor) -> None:
        """These have been overwritten: what came of them is worth nothing."""
        if self.width == 0:
            return
        self._fresh.index_fill_(0, rows, 0)

    def places(self, rows: Tensor) -> Tensor:
        """Where ``rows`` lie in ``table``, which has them all from now on, as they are now."""
        if rows.numel() > self._most and len(self.table) < len(self._stored):
            raise ValueError(
                f"rows must be {self._most} at most, for which there is room, got {rows.numel()}"
            )
        needed = marked(len(self._stored), rows)
        missing = needed & ~self._guessed
        place = torch.where(missing != 0, self._place[-1] + missing.cumsum(0), self._place)  # behind the last
        copy_rows(self._stored[:, : self.width], needed & ~self._fresh, place, self.table)
        return place[rows]


def _empty_table(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    try:
        return torch.empty(rows, columns, dtype=dtype, device=device)
    except torch.OutOfMemoryError:  # then all rows come when they are needed
        return torch.empty(0, 0, dtype=dtype, device=device)


def marked(count: int, rows: Tensor) -> Tensor:
    """``(count,)``: 1 for each of ``rows``, 0 for the others."""
    return torch.zeros(count, dtype=torch.int32, device=rows.device).scatter_(0, rows.flatten(), 1)
