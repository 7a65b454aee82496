"""How gradients are stored.

``encode`` turns rows of gradients into rows of stored numbers and their scales. ``fp32`` and ``fp16`` have
one scale a row, which keeps it inside the range of its type, whatever the size of the gradients: fp16 alone
would flush those of confident images to zero and overflow for others. ``int8``, ``int4`` and ``sign`` pack
their codes and have one scale for each block of a row (``ramen.memory.scale_blocks``); a value is its
code times that.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.memory.scale_blocks import UNIT, Blocks

CODECS = ("fp32", "fp16", "int8", "int4", "sign")  # the most exact first
_BITS = {"int8": 8, "int4": 4, "sign": 1}
_TINY = torch.finfo(torch.float32).tiny


class Codec(ABC):
    """A storage format for gradients of one length; ``create`` makes one.

    Attributes:
        name: One of ``CODECS``.
        size: Length of a gradient.
        dtype: Of the stored numbers.
        width: Stored numbers a row.
        scale_dtype: Of the scales.
        scale_width: Scales a row; 0 if it has a single one.
        embedding_dtype: Of the embeddings beside them.
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
        """The gradients again, ``(n, G)`` in fp32, as exactly as they are stored."""
        every = torch.arange(len(stored), device=stored.device)[:, None]
        ones = torch.ones_like(every, dtype=torch.float32)
        return self.flat(self.unpack(stored, scales)) * self.fold(ones, scales, every)

    def fold(self, weights: Tensor, scales: Tensor, rows: Tensor) -> Tensor:
        """The factors of what ``unpack`` gives for ``rows``: weights, and scales where it leaves them out."""
        return weights

    @abstractmethod
    def unpack(self, stored: Tensor, scales: Tensor, first: int = 0) -> Tensor:
        """Stored numbers as fp32, up to a factor for each row.

        Args:
            stored: Rows, or a cut of ``panels`` of them.
            scales: All scales of these rows.
            first: Where the cut starts.
        """

    def flat(self, unpacked: Tensor) -> Tensor:
        """Whole rows of what ``unpack`` gave, ``(n, G)``."""
        return unpacked

    def panels(self, rows: int, most_bytes: int, *, unpacked: bool, first: int = 0) -> Iterator[slice]:
        """Cuts of the stored columns of which ``rows`` rows take about ``most_bytes``, stored or unpacked.

        From ``first`` on, which is where such a cut starts.
        """
        step = self._aligned(most_bytes // (rows * (4 if unpacked else self.dtype.itemsize)), unpacked)
        for start in range(first, self.width, step):
            yield slice(start, min(self.width, start + step))

    @abstractmethod
    def _aligned(self, columns: int, unpacked: bool) -> int:
        """The nearest number of stored columns where a row may be cut, at least one such step."""


class FloatCodec(Codec):
    """Plain floating-point numbers and one scale a row."""

    scale_dtype = torch.float32
    scale_width = 0

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = self.width = size
        self.dtype = self.embedding_dtype = torch.float32 if name == "fp32" else torch.float16

    def encode(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Brings the largest number of a row to 1 before it is rounded to fp16."""
        if self.dtype == torch.float32:
            return gradients.to(self.dtype), gradients.new_ones(len(gradients), dtype=torch.float32)
        largest = torch.linalg.vector_norm(gradients, torch.inf, dim=1).clamp_min(_TINY)
        return (gradients / largest[:, None]).to(self.dtype), largest.float()

    def fold(self, weights: Tensor, scales: Tensor, rows: Tensor) -> Tensor:
        """Weight times scale."""
        return weights * scales[rows]

    def unpack(self, stored: Tensor, scales: Tensor, first: int = 0) -> Tensor:
        """The numbers, wider."""
        return stored.float()

    def _aligned(self, columns: int, unpacked: bool) -> int:
        return max(64, columns // 64 * 64)


class PackedCodec(Codec):
    """Codes of 8, 4 or 1 bit, packed, with one bfloat16 scale a block.

    Codes of several bits are whole numbers from -127 to 127 or from -7 to 7, rounded to nearest; the largest
    value of a block has the largest. One bit says whether a value is below zero, and the scale is the mean
    size of the block's values, for which the squared error is smallest. A block whose scale would be no
    normal number of fp32 is stored as zeros.

    The codes of a unit of 32 values follow each other from the lowest bit of the first byte on, in two's
    complement; the one bit of ``sign`` is set below zero.
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
        """Code times scale, whole units with their padding, ``(n, 32 * units)``."""
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
        """Without the padding."""
        return self.blocks.flat(unpacked)

    def _aligned(self, columns: int, unpacked: bool) -> int:
        units = columns // UNIT if unpacked else columns // self.unit_width
        return max(1, units) * self.unit_width


def create(name: str, size: int, blocks: Sequence[int] | None = None) -> Codec:
    """The codec of that name for gradients of length ``size``.

    Args:
        name: One of ``CODECS``.
        size: The gradients' length.
        blocks: Lengths of the runs of values that are alike in size; what ``Blocks`` takes.
    """
    if name in _BITS:
        return PackedCodec(name, Blocks(size, blocks))
    return FloatCodec(name, size)


def _pack_signs(negative: Tensor) -> Tensor:
    bit = torch.arange(8, dtype=torch.uint8, device=negative.device)
    eights = negative.reshape(len(negative), -1, 8).view(torch.uint8)
    return (eights << bit).sum(2, dtype=torch.uint8)


def _pack_nibbles(codes: Tensor) -> Tensor:
    first, second = codes.view(torch.uint8).view(len(codes), -1, 2).unbind(2)
    return first & 15 | second << 4


def _signs_of_bytes(device: torch.device) -> Tensor:
    """``(256, 8)``: 1 or -1 for each bit of each byte."""
    byte, bit = torch.arange(256, device=device), torch.arange(8, device=device)
    return (1 - 2 * (byte[:, None] >> bit & 1)).float()
