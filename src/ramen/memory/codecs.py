"""How gradients are stored.

``encode`` turns rows of gradients into rows of stored numbers and their scales. ``fp32`` and ``fp16`` have
one scale per row, which keeps the row within the range of its dtype: plain fp16 would flush the gradients of
confident images to zero and overflow for others. ``int8``, ``int4`` and ``sign`` pack their codes and have
one scale per block of a row (``ramen.memory.scale_blocks``); a value is its code times that scale.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.memory.scale_blocks import UNIT, Blocks

CODECS = ("fp32", "fp16", "int8", "int4", "sign")  # most exact first
_BITS = {"int8": 8, "int4": 4, "sign": 1}
_TINY = torch.finfo(torch.float32).tiny
_PANEL_BYTES = 64 * 2**20  # what is widened to fp32 at a time


class Codec(ABC):
    """A storage format for gradients of one length; ``create`` makes one.

    Attributes:
        name: One of ``CODECS``.
        size: Length of a gradient.
        dtype: The dtype of stored numbers.
        width: Stored numbers per row.
        scale_dtype: The dtype of scales.
        scale_width: Scales per row; 0 for a single one without a dimension.
        embedding_dtype: The dtype of the embeddings stored with the gradients.
    """

    name: str
    size: int
    dtype: torch.dtype
    width: int
    scale_dtype: torch.dtype
    scale_width: int
    embedding_dtype = torch.float16

    @abstractmethod
    def encode(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Stored rows ``(n, width)`` and their scales, ``(n, scale_width)`` or ``(n,)``."""

    def decode(self, stored: Tensor, scales: Tensor) -> Tensor:
        """The gradients ``(n, G)`` in fp32, as exactly as they are stored."""
        every = torch.arange(len(stored), device=stored.device)[:, None]
        ones = torch.ones_like(every, dtype=torch.float32)
        return self.flat(self.unpack(stored, scales)) * self.fold(ones, scales, every)

    def fold(self, weights: Tensor, scales: Tensor, rows: Tensor) -> Tensor:
        """The factors of unpacked ``rows``: the weights, times the scales if ``unpack`` leaves them out."""
        return weights

    @abstractmethod
    def unpack(self, stored: Tensor, scales: Tensor, first: int = 0) -> Tensor:
        """Stored numbers as fp32, up to a factor per row.

        Args:
            stored: Whole rows, or a slice of their columns from ``panels``.
            scales: All scales of these rows.
            first: The first column of the slice.
        """

    def flat(self, unpacked: Tensor) -> Tensor:
        """Whole unpacked rows without padding, ``(n, G)``."""
        return unpacked

    def panels(self, rows: int, most_bytes: int, *, unpacked: bool, first: int = 0) -> Iterator[slice]:
        """Slices of the stored columns; ``rows`` rows of one take about ``most_bytes``, stored or unpacked.

        They begin at ``first``, which must itself be the start of such a slice.
        """
        step = self._aligned(most_bytes // (rows * (4 if unpacked else self.dtype.itemsize)), unpacked)
        for start in range(first, self.width, step):
            yield slice(start, min(self.width, start + step))

    def sum_rows(
        self,
        stored: Tensor,
        scales: Tensor,
        rows: Tensor,
        weights: Tensor,
        accumulate: torch.dtype = torch.float32,
    ) -> Tensor:
        """``out[q] = sum_s weights[q, s] * decode(row rows[q, s])``, ``(Q, G)``, in plain torch.

        The rows in use are collected, unpacked and summed, a panel of columns at a time. On a CPU that reads
        far less than a dense product does. The sums are in fp32, or in fp64 if they ``accumulate`` in that.
        """
        weights = self.fold(weights, scales, rows).to(accumulate)
        if stored.dtype == accumulate and stored.device == weights.device:
            return F.embedding_bag(rows, stored, per_sample_weights=weights, mode="sum")
        used, position = rows.to(stored.device).unique(return_inverse=True)
        position, scales = position.to(weights.device), scales[used.to(scales.device)]
        sums = []
        for panel in self.panels(len(used), _PANEL_BYTES, unpacked=True):
            part = _moved(stored[:, panel].index_select(0, used), weights.device)
            # in fp32: summation in half precision would lose bits
            values = self.unpack(part, scales, panel.start).to(accumulate)
            sums.append(F.embedding_bag(position, values, per_sample_weights=weights, mode="sum"))
        return self.flat(torch.cat(sums, dim=1))

    @abstractmethod
    def _aligned(self, columns: int, unpacked: bool) -> int:
        """``columns`` rounded down to a multiple at which a row may be split, at least one such step."""


class FloatCodec(Codec):
    """Plain floating-point numbers and one scale per row."""

    scale_dtype = torch.float32
    scale_width = 0

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = self.width = size
        self.dtype = self.embedding_dtype = torch.float32 if name == "fp32" else torch.float16

    def encode(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Scales the largest number of a row to 1 before rounding to fp16."""
        if self.dtype == torch.float32:
            return gradients.to(self.dtype), gradients.new_ones(len(gradients), dtype=torch.float32)
        largest = torch.linalg.vector_norm(gradients, torch.inf, dim=1).clamp_min(_TINY)
        return (gradients / largest[:, None]).to(self.dtype), largest.float()

    def fold(self, weights: Tensor, scales: Tensor, rows: Tensor) -> Tensor:
        """Weight times scale."""
        return weights * scales[rows]

    def unpack(self, stored: Tensor, scales: Tensor, first: int = 0) -> Tensor:
        """The numbers in fp32."""
        return stored.float()

    def _aligned(self, columns: int, unpacked: bool) -> int:
        return max(64, columns // 64 * 64)


class PackedCodec(Codec):
    """Packed codes of 8, 4 or 1 bit, with one bfloat16 scale per block.

    Codes of several bits are integers from -127 to 127 or from -7 to 7, rounded to nearest; the largest value
    of a block has the largest code. A single bit says whether a value is negative; the scale is then the mean
    magnitude of the block, which minimises the squared error. A block whose scale would not be a normal fp32
    number is stored as zeros.

    The codes of a unit of 32 values are consecutive, starting at the lowest bit of the first byte, in two's
    complement; the single bit of ``sign`` is set for negative values.
    """

    scale_dtype = torch.bfloat16

    def __init__(self, name: str, blocks: Blocks) -> None:
        self.name = name
        self.blocks = blocks
        self.size = sum(blocks.sizes)
        self.bits = _BITS[name]
        self.dtype = torch.int8 if self.bits == 8 else torch.uint8
        self.width = blocks.units * self.unit_width
        self.scale_width = len(blocks.sizes)

    @property
    def unit_width(self) -> int:
        """Bytes that 32 values take."""
        return UNIT * self.bits // 8

    def encode(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Packed codes and the blocks' scales."""
        values = self.blocks.spread(gradients.float())
        scales = self._scales(values.abs())
        if self.bits == 1:
            return _pack_signs(values < 0), scales
        divisors = self._of_units(torch.where(scales > 0, scales, torch.inf))
        most = 2 ** (self.bits - 1) - 1
        codes = (values / divisors).round_().clamp_(-most, most).to(torch.int8).flatten(1)
        return codes if self.bits == 8 else _pack_nibbles(codes), scales

    def _scales(self, sizes: Tensor) -> Tensor:
        if self.bits == 1:
            scales = self.blocks.members(sizes.sum(2)).sum(2) / self.blocks.tables(sizes.device).sizes
        else:
            scales = self.blocks.members(sizes.amax(2)).amax(2) / (2 ** (self.bits - 1) - 1)
        limits = torch.finfo(self.scale_dtype)
        rounded = scales.clamp_max(limits.max).to(self.scale_dtype)
        return torch.where(rounded >= limits.tiny, rounded, 0)

    def _of_units(self, scales: Tensor, units: slice = slice(None)) -> Tensor:
        block = self.blocks.tables(scales.device).block[units]
        return scales.float().index_select(1, block)[:, :, None]

    def unpack(self, stored: Tensor, scales: Tensor, first: int = 0) -> Tensor:
        """Code times scale, in whole units including padding, ``(n, 32 * units)``."""
        first_unit = first // self.unit_width
        units = slice(first_unit, first_unit + stored.shape[1] // self.unit_width)
        if self.bits == 1:
            codes = F.embedding(stored.int(), _signs_of_bytes(stored.device))
        elif self.bits == 4:
            pairs = stored.view(torch.int8)
            codes = torch.stack([pairs << 4 >> 4, pairs >> 4], dim=-1).float()
        else:
            codes = stored.float()
        codes = codes.view(len(stored), -1, UNIT)
        return codes.mul_(self._of_units(scales, units)).flatten(1)

    def flat(self, unpacked: Tensor) -> Tensor:
        """Remove the padding."""
        return self.blocks.flat(unpacked)

    def _aligned(self, columns: int, unpacked: bool) -> int:
        units = columns // UNIT if unpacked else columns // self.unit_width
        return max(1, units) * self.unit_width


def _moved(part: Tensor, device: torch.device) -> Tensor:
    if part.device == device:
        return part
    return part.pin_memory().to(device, non_blocking=True)  # the next panel is collected meanwhile


def create(name: str, size: int, blocks: Sequence[int] | None = None) -> Codec:
    """Create a codec by name for gradients of length ``size``.

    Args:
        name: One of ``CODECS``.
        size: The gradients' length.
        blocks: Lengths of runs of values with similar magnitude, as for ``Blocks``.
    """
    if name in _BITS:
        return PackedCodec(name, Blocks(size, blocks))
    return FloatCodec(name, size)


def _pack_signs(negative: Tensor) -> Tensor:
    bit = torch.arange(8, dtype=torch.uint8, device=negative.device)
    eights: Tensor = negative.flatten(1).unflatten(1, (-1, 8)).view(torch.uint8)
    return (eights << bit).sum(2, dtype=torch.uint8)


def _pack_nibbles(codes: Tensor) -> Tensor:
    first: Tensor
    second: Tensor
    first, second = codes.view(torch.uint8).unflatten(1, (-1, 2)).unbind(2)
    return first & 15 | second << 4


def _signs_of_bytes(device: torch.device) -> Tensor:
    """``(256, 8)``: 1 or -1 for each bit of each byte."""
    byte, bit = torch.arange(256, device=device), torch.arange(8, device=device)
    return (1 - 2 * (byte[:, None] >> bit & 1)).float()
