"""A table of rows that grows with use: one tensor per column, each on its own device."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ramen.memory.base import expect, expect_finite
from ramen.utils.numerics import aligned


@dataclass(frozen=True)
class ColumnSpec:
    """Dtype, device and width of one column; width 0 is a single number per row."""

    dtype: torch.dtype
    device: torch.device
    width: int = 0

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return (self.width,) if self.width else ()

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return max(1, self.width) * self.dtype.itemsize


class RowTable:
    """Up to ``limit`` rows of the given ``columns``; starts with one row of zeros.

    Attributes:
        tensors: The columns by name.
        allocated: Rows that there is room for in every column.
    """

    def __init__(self, columns: dict[str, ColumnSpec], limit: int) -> None:
        self.columns = columns
        self.limit = limit
        self.allocated = 1
        self.tensors = {name: _room(column, 1).zero_() for name, column in columns.items()}

    def reserve(self, rows: int) -> None:
        # Halves, quarters, ... of the limit: when that is reached, the old rows are at most half of it.
        size = self.limit
        while size // 2 >= rows:
            size //= 2
        size = min(self.limit, aligned(size))
        for name in self.tensors:
            self._grow(name, size)
        self.allocated = size

    def _grow(self, name: str, rows: int) -> None:
        column, old = self.columns[name], self.tensors[name]
        try:
            new = _room(column, rows)
        except torch.OutOfMemoryError:  # both do not fit on the device: move the old rows to host memory
            old = self.tensors[name] = old.cpu()
            torch.cuda.empty_cache()
            new = _room(column, rows)
        new[: len(old)] = old
        if column.device.type != "cpu":
            new[len(old) :] = 0  # a dense product also reads rows not yet in use
        self.tensors[name] = new

    def state(self, rows: int) -> dict[str, Tensor]:
        """Copies of the first ``rows`` rows."""
        return {name: tensor[:rows].clone() for name, tensor in self.tensors.items()}

    def rows(self, rows: Tensor) -> dict[str, Tensor]:
        return {name: t[rows.to(t.device)].cpu() for name, t in self.tensors.items()}

    def put_back(self, state: dict[str, Tensor]) -> None:
        """Overwrite the first rows with what ``state`` returned."""
        for name, rows in state.items():
            self.tensors[name][: len(rows)] = rows

    def check(self, state: Mapping[str, Tensor], rows: int) -> None:
        """Raise ValueError unless ``state`` holds ``rows`` rows of a table like this one."""
        for name, column in self.columns.items():
            expect(name, state[name], column.dtype, (rows, *column.row_shape))
            expect_finite(name, state[name])

    def restored(self, state: Mapping[str, Tensor], rows: int) -> "RowTable":
        """A table like this one that holds ``rows`` rows of ``state``, which was checked."""
        table = RowTable(self.columns, self.limit)
        table.tensors = {name: _room(column, rows) for name, column in self.columns.items()}
        for name, tensor in table.tensors.items():
            tensor.copy_(state[name])
        table.allocated = rows
        return table

    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


def _room(column: ColumnSpec, rows: int) -> Tensor:
    return torch.empty((rows, *column.row_shape), dtype=column.dtype, device=column.device)
