"""The blocks of a packed gradient: runs of values that share one scale.

Gradients of different layers differ in magnitude, so blocks follow the layers' parameters. In a packed row
every block begins at a whole unit of 32 values, so that no word of the row belongs to two blocks; padding
follows a block whose length is not a multiple of 32. The norm layers of the usual encoders need none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

UNIT = 32
LARGEST = 1024


class Blocks:
    """The blocks of a gradient of length ``size``.

    Args:
        size: The gradient's length.
        pieces: Lengths of consecutive runs of values that belong together; if not given, all values do. Runs
            longer than 1,024 become several blocks.

    Attributes:
        sizes: How many values each block has.
        units: Units of a packed row.
        padded: Whether any block is followed by padding.

    >>> blocks = Blocks(2100, [2060, 40])
    >>> blocks.sizes, blocks.units, blocks.padded
    ((1024, 1024, 12, 40), 67, True)
    """

    def __init__(self, size: int, pieces: Sequence[int] | None = None) -> None:
        pieces = [size] if pieces is None else list(pieces)
        if sum(pieces) != size or min(pieces) < 1:
            raise ValueError(f"blocks must be positive lengths that add up to {size}, got {pieces}")
        starts = ((piece, start) for piece in pieces for start in range(0, piece, LARGEST))
        self.sizes = tuple(min(LARGEST, piece - start) for piece, start in starts)
        self.units = sum(map(_units, self.sizes))
        self.padded = self.units * UNIT != size
        self._even = len(set(map(_units, self.sizes))) == 1
        self._tables: dict[torch.device, Tables] = {}

    def tables(self, device: torch.device) -> "Tables":
        """The positions of all blocks, as tensors on ``device``."""
        if device not in self._tables:
            self._tables[device] = Tables.of(self.sizes, device)
        return self._tables[device]

    def spread(self, gradients: Tensor) -> Tensor:
        """``(n, size)`` as ``(n, units, 32)``, with zeros as padding."""
        if self.padded:
            columns = self.tables(gradients.device).columns
            wide = gradients.new_zeros(len(gradients), self.units * UNIT)
            gradients = wide.index_copy_(1, columns, gradients)
        return gradients.reshape(len(gradients), self.units, UNIT)

    def flat(self, wide: Tensor) -> Tensor:
        """``(n, units * 32)`` without the padding."""
        return wide.index_select(1, self.tables(wide.device).columns) if self.padded else wide

    def members(self, of_units: Tensor) -> Tensor:
        """``(n, units)`` as ``(n, blocks, most units of a block)``, with zeros after shorter blocks."""
        if self._even:
            return of_units.reshape(len(of_units), len(self.sizes), self.units // len(self.sizes))
        return F.pad(of_units, (0, 1))[:, self.tables(of_units.device).members]


@dataclass(frozen=True)
class Tables:
    """The blocks of a gradient as tensors on one device."""

    sizes: Tensor  # (blocks,) fp32
    columns: Tensor  # (size,): the position of each value in a packed row
    members: Tensor  # (blocks, most units of a block): each block's units, filled up with the number of units
    block: Tensor  # (units,): the block of each unit
    start: Tensor  # (units,): the first value in each unit
    stop: Tensor  # (units,): one past the end

    @classmethod
    def of(cls, sizes: tuple[int, ...], device: torch.device) -> "Tables":
        """Compute them for blocks of these sizes."""
        columns: list[int] = []
        members: list[list[int]] = []
        units: list[tuple[int, int, int]] = []
        for block, size in enumerate(sizes):
            begin, end = len(columns), len(columns) + size
            columns += range(len(units) * UNIT, len(units) * UNIT + size)
            members.append(list(range(len(units), len(units) + _units(size))))
            units += [(block, start, min(start + UNIT, end)) for start in range(begin, end, UNIT)]
        most = max(map(len, members))
        filled = [row + [len(units)] * (most - len(row)) for row in members]
        of_units = torch.tensor(units, dtype=torch.int32, device="cpu").T.contiguous().to(device)
        return cls(
            torch.tensor(sizes, dtype=torch.float32, device="cpu").to(device),
            torch.tensor(columns, device="cpu").to(device),
            torch.tensor(filled, device="cpu").to(device),
            *of_units,
        )


def _units(size: int) -> int:
    return -(-size // UNIT)
