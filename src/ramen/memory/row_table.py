"""A table of rows that grows with use: one tensor a column, each on its own device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ramen import kernels
from ramen.kernels.pinned_memory import shared_zeros
from ramen.kernels.rows import write_rows
from ramen.utils.numerics import aligned


@dataclass(frozen=True)
class Column:
    """Type, place and width of one column; width 0 is one number a row.

    A column in host memory which a GPU works with, ``used_from``, is shared with it where Triton is there:
    kernels read and write it, and the host only after waiting for them.
    """

    dtype: torch.dtype
    device: torch.device
    width: int = 0
    used_from: torch.device | None = None

    @property
    def shared(self) -> bool:
        """Whether a GPU reads and writes it in host memory."""
        near, user = self.device, self.used_from
        return near.type == "cpu" and user is not None and user.type == "cuda" and kernels.available()

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return (self.width,) if self.width else ()

    @property
    def row_bytes(self) -> int:
        """What one row takes."""
        return max(1, self.width) * self.dtype.itemsize


class RowPool:
    """Up to ``limit`` rows of the given ``columns``; starts with one row of zeros."""

    def __init__(self, columns: dict[str, Column], limit: int) -> None:
        self.columns = columns
        self.limit = limit
        self._tensors = {name: _room(column, 1).zero_() for name, column in columns.items()}

    @property
    def allocated(self) -> int:
        """Rows that there is room for now, in every column: growing may have failed in the middle."""
        return min(map(len, self._tensors.values()))

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def write(self, rows: Tensor, name: str, values: Tensor) -> None:
        """Overwrite ``rows`` of one column; they may lie elsewhere than the column."""
        column, table = self.columns[name], self._tensors[name]
        beside = table.device == rows.device and kernels.usable_on(rows.device)
        if column.shared or (beside and column.width):
            write_rows(table, rows, values)
        else:
            table[rows.to(column.device)] = values.to(column.device)

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows."""
        # Halves, quarters, ... of the limit: when the pool reaches it, the old rows are at most half of it.
        size = self.limit
        while size // 2 >= rows:
            size //= 2
        for name in self._tensors:
            self._grow(name, min(self.limit, aligned(size)))

    def _grow(self, name: str, rows: int) -> None:
        column, old = self.columns[name], self._settled(name)
        try:
            new = _room(column, rows)
        except torch.OutOfMemoryError:  # no room for both on the device: the old rows wait in host memory
            old = self._tensors[name] = old.cpu()
            torch.cuda.empty_cache()
            new = _room(column, rows)
        new[: len(old)] = old
        if column.device.type != "cpu":
            new[len(old) :] = 0  # a dense product reads rows that are not yet in use
        self._tensors[name] = new

    def _settled(self, name: str) -> Tensor:
        """A column that the host may read: no kernel is still writing to it."""
        if self.columns[name].shared:
            torch.cuda.synchronize(self.columns[name].used_from)
        return self._tensors[name]

    def state(self, rows: int) -> dict[str, Tensor]:
        """Copies of the first ``rows`` rows."""
        return {name: self._settled(name)[:rows].clone() for name in self._tensors}

    def put_back(self, state: dict[str, Tensor]) -> None:
        """Overwrite the first rows with those that ``state`` gave."""
        for name, rows in state.items():
            self._settled(name)[: len(rows)] = rows

    def restored(self, state: dict[str, Tensor], rows: int) -> "RowPool":
        """A pool like this one that holds ``rows`` rows of ``state``."""
        for name, column in self.columns.items():
            expect(name, state[name], column.dtype, (rows, *column.row_shape))
            if column.dtype.is_floating_point and not state[name].isfinite().all():
                raise ValueError(f"{name} in the state must be finite, got numbers that are not")
        pool = RowPool(self.columns, self.limit)
        pool._tensors = {name: _room(column, rows) for name, column in self.columns.items()}
        for name, tensor in pool._tensors.items():
            tensor.copy_(state[name])
        return pool

    def bytes(self) -> int:
        """What the pool takes now."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())


def _room(column: Column, rows: int) -> Tensor:
    shape = (rows, *column.row_shape)
    if column.shared:
        assert column.used_from is not None
        return shared_zeros(shape, column.dtype, column.used_from)
    return torch.empty(shape, dtype=column.dtype, device=column.device)


def expect(name: str, tensor: object, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless something saved is a tensor of this type and shape."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} in the state must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} in the state must be {dtype} of shape {shape}, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
