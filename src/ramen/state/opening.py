"""Reading a store when it is opened, also one that is damaged."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ramen.client.result import Result
from ramen.methods._method import Method
from ramen.methods._saved_state import ForeignStateError
from ramen.state.records import Gap, read_records
from ramen.state.replay import VERSION, Replay
from ramen.state.segments import Segments

log = logging.getLogger("ramen")


@dataclass(frozen=True)
class Opened:
    """What a store held, after the method has taken it over.

    Attributes:
        copies: As in ``Replay``.
        sizes: Bytes by segment.
        counts: Records by segment.
        answers: The results of the last batch.
        recovered: What had to be repaired, in words.
        damaged: Segments that were set aside.
        rewrite: Whether all of the state must be written again.
    """

    copies: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    answers: tuple[Result, ...] = ()
    recovered: str | None = None
    damaged: frozenset[int] = frozenset()
    rewrite: bool = False


def read_store(segments: Segments, method: Method) -> Opened:
    """Load the state in a store into ``method``, as far as it is sound.

    A damaged end is cut off: a process was killed while it wrote, and nothing that was promised is lost. If
    something is damaged elsewhere, the method continues with the rest. A state that belongs to something
    else raises ForeignStateError, and the store stays as it is.
    """
    found = _Log(segments)
    replay = found.replay
    if not replay.facts:
        return _start_empty(segments, found, "nothing in it can be read") if found.lost else found.cut()
    try:
        method.load_state_dict(replay.state(), salvage=bool(found.lost))
    except ForeignStateError as error:
        raise ForeignStateError(f"the store cannot be used, and stays as it is: {error}") from None
    except (ValueError, TypeError, KeyError, IndexError) as error:
        return _start_empty(segments, found, str(error))
    answers = _results(replay.facts)
    if not found.lost:
        opened = found.cut()
        return replace(opened, copies=replay.copies, answers=answers)
    aside = _set_aside(segments, found.lost)
    said = _said(f"{'; '.join(found.lost.values())}; continuing with the rest ({aside})")
    return Opened({}, found.sizes, found.counts, answers, said, frozenset(found.lost), rewrite=True)


def _results(facts: Mapping[str, Any]) -> tuple[Result, ...]:
    return tuple(map(Result.from_dict, facts.get("answers", ())))


class _Log:
    """All segments, read once.

    Attributes:
        replay: What their records say.
        sizes: Bytes by segment.
        counts: Sound records by segment.
        lost: What is damaged, in words, by segment; the end of the last one excepted.
    """

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.replay = Replay()
        self.sizes: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.lost: dict[int, str] = {}
        self._tail: Gap | None = None  # of the last segment
        previous = 0
        for number in segments.numbers():
            self._lose_tail(previous)
            self._read(number)
            previous = number
        for number, stated in self.replay.facts.get("segments", {}).items():
            missing = stated - self.counts.get(int(number), 0)
            if missing > 0:
                self.lost.setdefault(int(number), f"segment {number} lacks {missing} records")

    def _read(self, number: int) -> None:
        buffer = self._segments.read(number)
        self.sizes[number], self.counts[number] = len(buffer), 0
        for part in read_records(buffer):
            self._lose_tail(number)
            if isinstance(part, Gap):
                self._tail = part
                continue
            version = part.facts.get("version")
            if version != VERSION:
                raise ForeignStateError(f"the store is of version {version}, this library reads {VERSION}")
            self.replay.apply(number, part.tensors, part.facts)
            self.counts[number] += 1

    def _lose_tail(self, number: int) -> None:
        """Something follows the gap that was found last: it is no damaged end."""
        if self._tail is not None:
            gap, self._tail = self._tail, None
            self.lost.setdefault(number, f"segment {number} is damaged at byte {gap.start} ({gap.why})")

    def cut(self) -> Opened:
        """Cut off a damaged end."""
        if self._tail is None:
            return Opened(sizes=self.sizes, counts=self.counts)
        last, length = max(self.sizes), self._tail.start
        lost = self.sizes[last] - length
        if length:
            self._segments.cut(last, length)
            self.sizes[last] = length
        else:
            self._segments.remove(last)
            del self.sizes[last], self.counts[last]
        said = _said(f"the last {lost} bytes of segment {last} were incomplete and were cut off")
        return Opened(sizes=self.sizes, counts=self.counts, recovered=said)


def _start_empty(segments: Segments, found: _Log, why: str) -> Opened:
    aside = _set_aside(segments, found.sizes)
    return Opened(recovered=_said(f"the state cannot be used ({why}); starting without it ({aside})"))


def _set_aside(segments: Segments, numbers: Mapping[int, Any]) -> str:
    segments.forget_set_aside()
    there = set(segments.numbers())
    names = [segments.set_aside(number) for number in numbers if number in there]
    return f"kept as {', '.join(names)}" if names else "nothing to keep"


def _said(text: str) -> str:
    log.warning("store: %s", text)
    return text
