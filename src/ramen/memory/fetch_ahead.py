"""Rows of a table in host memory that are fetched before it is known which ones are needed.

What a batch retrieves is known once the batch has entered the memory, which is after its backward pass. Most
of it can be guessed as soon as its embeddings are known, and the backward pass does not use the bus: what is
guessed is fetched meanwhile. What was not guessed, or has been overwritten since, is fetched when it is
needed, so that a guess affects how long a step takes and nothing else.
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
        self.device = device
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
    """Rows of a table that a batch's queries will probably need, fetched while something else is computed.

        with FetchAhead(...)(queries):
            ...  # rows arrive meanwhile, and nobody may overwrite them

    Rows that do not fit are cut: their first columns are fetched.

    Args:
        codec: Of the rows.
        stored: The table, in host memory that the GPU reads and writes.
        picks: The most rows that all queries will need.
        guess: Which ones, given the queries.
        side: The stream on which they are fetched.

    Attributes:
        table: The fetched rows, in the order of their numbers, followed by those that were fetched later.
    """

    def __init__(
        self, codec: Codec, stored: Tensor, picks: int, guess: Callable[[Tensor], Tensor], side: SideStream
    ) -> None:
        self._stored = stored
        self._picks = picks
        self._guess = guess
        self._side = side
        # Everything here belongs to the current stream, and is freed only after the fork has joined it.
        rows = len(stored)
        room = min(2 * picks, rows)  # for what is guessed, and as many again that are fetched later
        columns = next(codec.panels(room, _MOST_BYTES, unpacked=False))
        self.table = _empty_table(room, columns.stop, stored.dtype, side.device)
        self._guessed = torch.zeros(rows, dtype=torch.int32, device=side.device)
        self._fresh = torch.zeros_like(self._guessed)
        self._place = torch.empty(rows, dtype=torch.int64, device=side.device)

    @contextmanager
    def __call__(self, queries: Tensor) -> Iterator[None]:
        """A block during which rows are fetched, and after which they are there."""
        if self.width == 0:
            yield
            return
        try:
            with self._side.fork():
                self._start(queries)
            yield
        finally:  # also if the block fails: a recording has to be ended properly
            self._side.join()
        self._fresh.copy_(self._guessed)

    def _start(self, queries: Tensor) -> None:
        self._guessed.scatter_(0, self._guess(queries).flatten(), 1)
        torch.sub(self._guessed.cumsum(0), 1, out=self._place)
        copy_rows_sparingly(self._stored[:, : self.width], self._guessed, self._place, self.table)

    @property
    def width(self) -> int:
        """How many columns of each row are fetched: 0 if the GPU has no room for any."""
        return self.table.shape[1]

    def outdate(self, rows: Tensor) -> None:
        """These rows have been overwritten: what was fetched of them is worthless."""
        self._fresh.index_fill_(0, rows, 0)

    def places(self, rows: Tensor) -> Tensor:
        """Where ``rows`` are in ``table``, which holds them all from now on, as they are now."""
        if rows.numel() > self._picks and len(self.table) < len(self._stored):
            raise ValueError(f"rows must be at most {self._picks}, got {rows.numel()}")
        needed = marked(len(self._stored), rows)
        missing = needed & ~self._guessed
        place = torch.where(missing != 0, self._place[-1] + missing.cumsum(0), self._place)  # after the last
        copy_rows(self._stored[:, : self.width], needed & ~self._fresh, place, self.table)
        return place[rows]


def _empty_table(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    try:
        return torch.empty(rows, columns, dtype=dtype, device=device)
    except torch.OutOfMemoryError:  # then all rows are fetched when they are needed
        return torch.empty(0, 0, dtype=dtype, device=device)


def marked(count: int, rows: Tensor) -> Tensor:
    """``(count,)``: 1 for each of ``rows``, 0 for the others."""
    return torch.zeros(count, dtype=torch.int32, device=rows.device).scatter_(0, rows.flatten(), 1)
