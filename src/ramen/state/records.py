"""Records one after the other in a buffer; what is damaged is found, and what follows it is found again.

A record is a frame of 24 bytes, sealed tensors (``ramen.utils.sealed``), and zeros up to a multiple
of 8 bytes. The frame has a mark, the length of what follows, and the checksum of both.
"""

import mmap
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from ramen.utils.sealed import DamagedError, seal, total_bytes, unseal

Buffer = mmap.mmap | bytearray

_MARK = b"RAMENREC"
_FRAME = 24
_ALIGNMENT = 8


@dataclass(frozen=True)
class Record:
    """A sound record, from byte ``start`` to before ``stop``."""

    start: int
    stop: int
    tensors: dict[str, Tensor]
    facts: dict[str, str]


@dataclass(frozen=True)
class Gap:
    """Bytes that are no record."""

    start: int
    stop: int
    why: str


def write_record(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> list[memoryview]:
    """The pieces of a record, one after the other; tensors are on the CPU and not copied."""
    pieces = seal(tensors, facts)
    length = total_bytes(pieces)
    frame = _MARK + length.to_bytes(8, "little")
    checksum = zlib.crc32(frame).to_bytes(8, "little")
    return [memoryview(frame + checksum), *pieces, memoryview(bytes(-length % _ALIGNMENT))]


def read_records(buffer: Buffer) -> Iterator[Record | Gap]:
    """All records of a buffer, and the gaps between them. The tensors share the buffer."""
    place, broken_at, why = 0, -1, ""
    while place < len(buffer):
        try:
            record = _read_record(buffer, place)
        except DamagedError as error:
            if broken_at < 0:
                broken_at, why = place, str(error)
            found = buffer.find(_MARK, place + 1)
            place = len(buffer) if found < 0 else found
            continue
        if broken_at >= 0:
            yield Gap(broken_at, place, why)
            broken_at = -1
        yield record
        place = record.stop
    if broken_at >= 0:
        yield Gap(broken_at, len(buffer), why)


def _read_record(buffer: Buffer, start: int) -> Record:
    view = memoryview(buffer)[start:]
    frame, checksum = bytes(view[:16]), bytes(view[16:_FRAME])
    if not frame.startswith(_MARK) or zlib.crc32(frame).to_bytes(8, "little") != checksum:
        raise DamagedError("no record begins here")
    length = int.from_bytes(frame[8:], "little")
    stop = _FRAME + length + -length % _ALIGNMENT
    if stop > len(view) or any(view[_FRAME + length : stop]):
        raise DamagedError("a record is incomplete")
    tensors, facts = unseal(view[_FRAME : _FRAME + length])
    return Record(start, start + stop, tensors, facts)
