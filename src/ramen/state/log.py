"""The log of a store: records in segments, and the state that they describe when they are read in order.

A segment is a file such as ``segment-00000007.log``, to which records are appended. A record is a frame of 24
bytes, sealed tensors (``ramen.utils.sealed``), and zeros up to a multiple of 8 bytes. The frame has a mark,
the length of what follows, and the checksum of both. A record has a number; a gap in the numbers is damage.
"""

import contextlib
import json
import mmap
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ramen.memory.base import Patch
from ramen.methods._state import ForeignStateError
from ramen.utils.files import atomic_write, file_lock
from ramen.utils.sealed import DamagedError, seal, total_bytes, unseal

VERSION = 2
_READ = (1, VERSION)
_MARK = b"RAMENREC"
_FRAME = 24
_ALIGNMENT = 8
_GROUP = "group"  # where groups of processes have saved their states, up to version 0.2
_NAME = re.compile(r"segment-(\d{8})\.log")
_WHOLE = "="  # before the name of a tensor that a record has as a whole
_PARTS, _LEAST_PART = 64, 16  # at most so many parts, and rows of a part: damage costs no more than one

Buffer = mmap.mmap | bytearray
Patches = Mapping[str, Sequence[Patch]]  # by a memory's prefix, with the full names of its tensors


# -- records ------------------------------------------------------------------------------------------------


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


def state_record(whole: Mapping[str, Tensor], patches: Patches, facts: Mapping[str, Any]) -> list[memoryview]:
    """A record of tensors that replace the old ones, new rows of memories, and plain values."""
    tensors = {f"{_WHOLE}{name}": tensor for name, tensor in whole.items()}
    described: list[dict[str, Any]] = []
    for prefix, of_memory in patches.items():
        for position, patch in enumerate(of_memory):
            number = len(described)
            tensors[f"{number}"] = patch.places
            tensors |= {f"{number}{_WHOLE}{name}": values for name, values in patch.values.items()}
            rows_of = None if position else prefix
            described.append({"length": patch.length, "fill": patch.fill, "rows_of": rows_of})
    written = {**facts, "version": VERSION, "patches": described}
    return write_record(tensors, {name: json.dumps(value) for name, value in written.items()})


# -- segments -----------------------------------------------------------------------------------------------


class Log:
    """The segments in a folder."""

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"store must be a folder, got the file {folder}")
        if (folder / _GROUP).exists():
            raise ForeignStateError(
                f"store must be a folder of one process, got {folder}, where a group of processes has saved "
                f"its state: version 0.2 continues it; without {folder / _GROUP} the store starts anew"
            )
        self._folder = folder

    def lock(self) -> AbstractContextManager[object]:
        """Keep other processes away; LockedError if one is there."""
        return file_lock(self._folder / "lock", "is using this store")

    def segments(self) -> list[int]:
        """Their numbers, in order."""
        names = (_NAME.fullmatch(path.name) for path in self._folder.glob("segment-*.log"))
        return sorted(int(name[1]) for name in names if name)

    def read(self, segment: int) -> Buffer:
        """The file, mapped; changes to it stay in memory."""
        with self._path(segment).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return bytearray()
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def append(self, segment: int, pieces: Sequence[memoryview]) -> None:
        """Add to the end of a segment, which may be new, and wait for the disk.

        If that fails, nothing is left of it, or a damaged end.
        """
        path = self._path(segment)
        is_new = not path.exists()
        with path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                for piece in pieces:
                    rest = piece
                    while len(rest):
                        rest = rest[os.write(file.fileno(), rest) :]
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    file.truncate(end)
                    if is_new:
                        path.unlink()
                raise
        if is_new:
            self._settle_folder()

    def replace_up_to(self, segment: int, records: Iterator[list[memoryview]]) -> int:
        """Put records in place of a segment and of all before it; how many bytes they have.

        Killed at any instant, it leaves something that says the same: the new segment overrides older ones.
        """
        with atomic_write(self._path(segment)) as file:
            for pieces in records:
                file.writelines(pieces)
            size = file.tell()
        self._settle_folder()
        for older in self.segments():
            if older < segment:
                self.remove(older)
        return size

    def cut(self, segment: int, length: int) -> None:
        """Shorten a segment, or remove it if nothing would be left."""
        if not length:
            self.remove(segment)
            return
        with self._path(segment).open("r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())

    def remove(self, segment: int) -> None:
        """Remove a file; if the machine stops now, it may come back, which does no harm."""
        self._path(segment).unlink(missing_ok=True)

    def set_aside(self, segments: Sequence[int]) -> str:
        """Keep damaged segments under other names, in place of those that were set aside before."""
        for pattern in ("segment-*.damaged", ".segment-*.tmp"):
            for path in self._folder.glob(pattern):
                path.unlink(missing_ok=True)
        there = [self._path(segment) for segment in segments if self._path(segment).exists()]
        for path in there:
            os.replace(path, path.with_suffix(".damaged"))
        names = ", ".join(str(path.with_suffix(".damaged")) for path in there)
        return f"kept as {names}" if names else "nothing to keep"

    def _path(self, segment: int) -> Path:
        return self._folder / f"segment-{segment:08}.log"

    def _settle_folder(self) -> None:
        """Make the disk know a new file's name."""
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# -- the state ----------------------------------------------------------------------------------------------


@dataclass
class _Columns:
    """Tensors with a value for each row of a memory, and where in them that is."""

    fill: int
    length: int
    tensors: dict[str, Tensor]  # with room to grow
    places: Tensor  # by row; -1 for one that was never written

    def apply(self, rows: Tensor, places: Tensor, values: Mapping[str, Tensor], length: int) -> None:
        self.length = length
        self.places = _grown(self.places, int(rows.max()) + 1 if len(rows) else 0, -1)
        self.places[rows] = places
        for name, new in values.items():
            tensor = _grown(self.tensors.get(name, new[:0]), length, self.fill)
            tensor[places] = new
            self.tensors[name] = tensor

    def patch(self, rows: Tensor) -> Patch:
        places = self.places[rows]
        values = {name: tensor[places] for name, tensor in self.tensors.items()}
        return Patch(places, values, self.length, self.fill)


def _grown(tensor: Tensor, length: int, fill: int) -> Tensor:
    """The tensor itself if it has that many rows, or else a copy with room for more."""
    if length <= len(tensor):
        return tensor
    room = max(length, 2 * len(tensor))
    larger = torch.full((room, *tensor.shape[1:]), fill, dtype=tensor.dtype)
    larger[: len(tensor)] = tensor
    return larger


class Replay:
    """What the records of a log say together, later ones overriding earlier ones.

    Attributes:
        facts: Plain values of the last record; empty if there is none.
        sizes: Bytes by segment.
        lost: What is damaged or missing, in words, by segment; a damaged end of the log excepted.
        tail: A damaged end: the last segment, and where the damage begins.
    """

    def __init__(self, log: Log, last: int | None = None) -> None:
        """Read all segments, or those up to ``last``."""
        self.facts: dict[str, Any] = {}
        self.sizes: dict[int, int] = {}
        self.lost: dict[int, str] = {}
        self.tail: tuple[int, int] | None = None
        self._whole: dict[str, Tensor] = {}
        self._columns: dict[str, list[_Columns]] = {}
        self._expected: tuple[int, int] | None = None  # number and part of the next record
        self._again: tuple[int, int] | None = None  # of one that was written although that seemed to fail
        self._counts: dict[int, int] = {}  # records by segment, which version 1 numbers them by
        gaps: dict[int, Gap] = {}  # since the last record
        for segment in log.segments():
            if last is not None and segment > last:
                break
            buffer = log.read(segment)
            self.sizes[segment] = len(buffer)
            for part in read_records(buffer):
                if isinstance(part, Gap):
                    gaps[segment] = part
                else:
                    self._apply(segment, part, gaps)
                    gaps = {}
        if gaps:
            end = max(gaps)
            self.tail = end, gaps.pop(end).start
        self._lose(gaps)
        self._check_end()

    def _apply(self, segment: int, record: Record, gaps: Mapping[int, Gap]) -> None:
        facts = {name: json.loads(value) for name, value in record.facts.items()}
        if facts.get("version") not in _READ:
            raise ForeignStateError(
                f"the store is of version {facts.get('version')}, this library reads up to {VERSION}"
            )
        self._counts[segment] = self._counts.get(segment, 0) + 1
        if facts["version"] == 1:
            self._lose(gaps)
            if facts["fresh"]:
                self._clear()
        else:
            self._check_number(segment, facts, gaps)
        self.facts = facts
        whole = {
            name.removeprefix(_WHOLE): t for name, t in record.tensors.items() if name.startswith(_WHOLE)
        }
        self._whole |= {name: tensor.clone() for name, tensor in whole.items()}
        columns: list[_Columns] = []
        for number, described in enumerate(facts["patches"]):
            start, places = f"{number}{_WHOLE}", record.tensors[f"{number}"]
            values = {n.removeprefix(start): t for n, t in record.tensors.items() if n.startswith(start)}
            if described["rows_of"] is not None:
                columns, position, rows = self._columns.setdefault(described["rows_of"], []), 0, places
            if position == len(columns):
                columns.append(_Columns(described["fill"], 0, {}, places[:0]))
            columns[position].apply(rows, places, values, described["length"])
            position += 1

    def _check_number(self, segment: int, facts: Mapping[str, Any], gaps: Mapping[int, Gap]) -> None:
        number, part, parts = facts["number"], facts["part"], facts["parts"]
        if part == 0 and (parts > 1 or facts["complete"]):  # overrides all that was before
            self.lost.clear()
        elif (number, part) not in (self._expected, self._again):
            self._lose(gaps)
            if not gaps:
                self.lost.setdefault(segment, f"segment {segment} lacks records before number {number}")
        if self.facts.get("began") != facts["began"]:
            self._clear()
        self._expected = (number, part + 1) if part + 1 < parts else (number + 1, 0)
        self._again = number, 0

    def _check_end(self) -> None:
        if self._expected is not None and self._expected[1]:
            self.lost.setdefault(max(self.sizes), f"segment {max(self.sizes)} lacks its last records")
        for segment, stated in self.facts.get("segments", {}).items():  # of version 1
            missing = stated - self._counts.get(int(segment), 0)
            if missing > 0:
                self.lost.setdefault(int(segment), f"segment {segment} lacks {missing} records")

    def _lose(self, gaps: Mapping[int, Gap]) -> None:
        for segment, gap in gaps.items():
            self.lost.setdefault(segment, f"segment {segment} is damaged at byte {gap.start} ({gap.why})")

    def _clear(self) -> None:
        self._whole, self._columns = {}, {}

    def state(self) -> dict[str, Tensor]:
        """As ``Method.load_state_dict`` takes it."""
        found = dict(self._whole)
        for columns in self._columns.values():
            for one in columns:
                found |= {name: tensor[: one.length] for name, tensor in one.tensors.items()}
        return found

    def records(self) -> Iterator[list[memoryview]]:
        """All of it once more, in a number of records: damage is to cost a few rows and not all."""
        rows = {prefix: (c[0].places >= 0).nonzero()[:, 0] for prefix, c in self._columns.items()}
        most = max(map(len, rows.values()), default=0)
        size = max(_LEAST_PART, -(-most // _PARTS))
        parts = max(1, -(-most // size))
        for part in range(parts):
            chosen = {prefix: all_rows[part * size : (part + 1) * size] for prefix, all_rows in rows.items()}
            patches = {
                prefix: [one.patch(some) for one in self._columns[prefix]]
                for prefix, some in chosen.items()
                if len(some)
            }
            facts = {**self.facts, "part": part, "parts": parts, "complete": parts == 1}
            # the first and the last part say what it is: either may be the one that is damaged
            whole = self._whole if part in (0, parts - 1) else {}
            yield state_record(whole, patches, facts)


# -- facts of stored states, read before any model is loaded ------------------------------------------------


def dtypes_below(folder: str | os.PathLike[str] | None) -> Iterator[str | None]:
    """The dtype of each state in a folder or below it; None for one that does not say, as in version 0.2."""
    if folder is None:
        return
    found = Path(folder).expanduser().rglob("segment-*.log")
    for location in dict.fromkeys(path.parent for path in found):
        for classifier in _classifiers(location):
            yield classifier.get("dtype")
            break


def classes_in(folder: Path) -> tuple[str, ...] | None:
    """The class names of the state in a folder, the newest that can be read; None if there is none."""
    names: tuple[str, ...] | None = None
    with suppress(ValueError, TypeError, KeyError, OSError):  # whatever is there is no state
        for classifier in _classifiers(folder):
            names = tuple(map(str, classifier["classes"]))
    return names


def _classifiers(folder: Path) -> Iterator[dict[str, Any]]:
    log = Log(folder)
    for segment in log.segments():
        for record in read_records(log.read(segment)):
            if isinstance(record, Record):
                for name, tensor in record.tensors.items():
                    if name.endswith("header"):
                        yield json.loads(bytes(tensor.tolist()))["classifier"]
