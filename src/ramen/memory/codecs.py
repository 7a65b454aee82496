"""How gradients are stored.

``encode`` turns rows of gradients into rows of stored numbers and their scales. ``fp32`` and ``fp16`` have
one scale per row, which keeps the row within the range of its dtype: plain fp16 would flush the gradients of
confident images to zero and overflow for others. ``sign`` stores one bit per value and one scale per block:
gradients of different layers differ in magnitude, so blocks follow the layers' parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CODECS = ("fp32", "fp16", "sign")  # most exact first
UNIT = 32
LARGEST_BLOCK = 1024
_TINY = torch.finfo(torch.float32).tiny
_PANEL_BYTES = 8 * 2**20  # what is widened to fp32 at a time, and stays in a CPU's cache


class FloatCodec:
    """Plain floating-point numbers and one scale per row.

    Attributes:
        name: One of ``CODECS``.
        size: Length of a gradient.
        dtype: The dtype of stored numbers.
        width: Stored numbers per row.
        scale_dtype: The dtype of scales.
        scale_width: Scales per row; 0 for a single one without a dimension.
        embedding_dtype: The dtype of the embeddings stored with the gradients.
    """

    scale_dtype = torch.float32
    scale_width = 0

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = self.width = size
        self.dtype = self.embedding_dtype = torch.float32 if name == "fp32" else torch.float16

    def encode(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``(n, G)`` and scales ``(n,)``: the largest number of a row is 1 before rounding to fp16."""
        if self.dtype == torch.float32:
            return gradients.to(self.dtype), gradients.new_ones(len(gradients), dtype=torch.float32)
        largest = torch.linalg.vector_norm(gradients, torch.inf, dim=1).clamp_min(_TINY)
        return (gradients / largest[:, None]).to(self.dtype), largest.float()

    def decode(self, stored: Tensor, scales: Tensor) -> Tensor:
        """The gradients ``(n, G)`` in fp32, as exactly as they are stored."""
        return stored.float() * scales[:, None]

    def sum_rows(self, stored: Tensor, scales: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        """``out[q] = sum_s weights[q, s] * decode(row rows[q, s])``, ``(Q, G)`` in fp32, in plain torch.

        The rows in use are collected and summed, a panel of columns at a time. On a CPU that reads far less
        than a dense product does.
        """
        weights = weights * scales[rows]
        if stored.dtype == torch.float32:
            return F.embedding_bag(rows, stored, per_sample_weights=weights, mode="sum")
        used, position = rows.unique(return_inverse=True)
        step = max(64, _PANEL_BYTES // (4 * len(used)) // 64 * 64)
        sums = []
        for panel in stored.split(step, 1):
            values = panel.index_select(0, used).float()
            sums.append(F.embedding_bag(position, values, per_sample_weights=weights, mode="sum"))
        return torch.cat(sums, dim=1)


class SignCodec:
    """One bit per value, set if it is negative, and one bfloat16 scale per block, its mean magnitude.

    That scale minimises the squared error. A block whose scale would not be a normal fp32 number is stored as
    zeros. The bits of a unit of 32 values are consecutive, starting at the lowest bit of the first byte.
    """

    name = "sign"
    dtype = torch.uint8
    scale_dtype = torch.bfloat16
    embedding_dtype = torch.float16

    def __init__(self, blocks: "Blocks") -> None:
        self.blocks = blocks
        self.size = sum(blocks.sizes)
        self.width = blocks.units * UNIT // 8
        self.scale_width = len(blocks.sizes)

    def encode(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Packed bits ``(n, width)`` and the blocks' scales ``(n, blocks)``."""
        values = self.blocks.spread(gradients.float())
        means = self.blocks.members(values.abs().sum(2)).sum(2) / self.blocks.tables(values.device).sizes
        limits = torch.finfo(self.scale_dtype)
        scales = means.clamp_max(limits.max).to(self.scale_dtype)
        bit = torch.arange(8, dtype=torch.uint8, device=gradients.device)
        eights: Tensor = (values < 0).flatten(1).unflatten(1, (-1, 8)).view(torch.uint8)
        return (eights << bit).sum(2, dtype=torch.uint8), torch.where(scales >= limits.tiny, scales, 0)

    def decode(self, stored: Tensor, scales: Tensor) -> Tensor:
        return self.blocks.flat(self._unpacked(stored, scales, 0))

    def sum_rows(self, stored: Tensor, scales: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        used, position = rows.unique(return_inverse=True)
        scales = scales[used]
        step = max(1, _PANEL_BYTES // (4 * len(used)) // UNIT) * UNIT // 8
        sums = []
        for number, panel in enumerate(stored.split(step, 1)):
            values = self._unpacked(panel.index_select(0, used), scales, number * step)
            sums.append(F.embedding_bag(position, values, per_sample_weights=weights, mode="sum"))
        return self.blocks.flat(torch.cat(sums, dim=1))

    def _unpacked(self, stored: Tensor, scales: Tensor, first: int) -> Tensor:
        """The values of some columns in whole units including padding, ``(n, 32 * units)``."""
        start = first * 8 // UNIT
        block = self.blocks.tables(scales.device).block[start : start + stored.shape[1] * 8 // UNIT]
        signs = F.embedding(stored.int(), _signs_of_bytes(stored.device)).view(len(stored), -1, UNIT)
        return signs.mul_(scales.float().index_select(1, block)[:, :, None]).flatten(1)


Codec = FloatCodec | SignCodec


def create(name: str, size: int, blocks: Sequence[int] | None = None) -> Codec:
    """Create a codec by name for gradients of length ``size``; ``blocks`` as for ``Blocks``."""
    return SignCodec(Blocks(size, blocks)) if name == "sign" else FloatCodec(name, size)


def _signs_of_bytes(device: torch.device) -> Tensor:
    """``(256, 8)``: 1 or -1 for each bit of each byte."""
    byte, bit = torch.arange(256, device=device), torch.arange(8, device=device)
    return (1 - 2 * (byte[:, None] >> bit & 1)).float()


class Blocks:
    """The blocks of a gradient of length ``size``: runs of values that share one scale.

    In a packed row every block begins at a whole unit of 32 values, so that no word of the row belongs to two
    blocks; padding follows a block whose length is not a multiple of 32. The norm layers of the usual
    encoders need none.

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
        starts = ((piece, start) for piece in pieces for start in range(0, piece, LARGEST_BLOCK))
        self.sizes = tuple(min(LARGEST_BLOCK, piece - start) for piece, start in starts)
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
