"""One stream of an engine: what is known of it, and, while it is in memory, the method that adapts to it."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ramen.methods import Method
from ramen.serve.batch_answers import BatchAnswers
from ramen.serve.engine.activity import RecentAnswers
from ramen.serve.engine.stream_facts import StreamFacts
from ramen.serve.store import StateStore

_serials = itertools.count(1)


@dataclass(eq=False)
class Resident:
    """What a stream has while it is in memory; used by whoever holds the stream, or answers its batch.

    Attributes:
        method: Adapts to the stream.
        store: Keeps what it learns; None if the disk could not be reached: then nothing is kept.
        answers: Turns predictions into results.
        recent: Its last answers.
        bytes: What its memory takes.
        served: Whether a batch was answered since it came into memory.
        last_batch: When, on the monotonic clock.
    """

    method: Method
    store: StateStore | None
    answers: BatchAnswers
    recent: RecentAnswers
    bytes: int
    served: bool = False
    last_batch: float = field(default_factory=time.monotonic)

    def fill(self) -> tuple[int, int] | None:
        """How many entries its memories hold, and how many they can hold; None if they do not say."""
        known = [fill for memory in self.method.memories.values() if (fill := memory.fill()) is not None]
        return (sum(held for held, _ in known), sum(most for _, most in known)) if known else None


class ServedStream:
    """A stream, by identity: one that is deleted and created again is another one.

    Args:
        name: Its name.
        facts: None until they are read.

    Attributes:
        resident: None while it is on disk only. Changed by whoever holds the stream.
        is_new: Whether nothing of it has been written yet.
        gone: Whether it was deleted.
        recovered: What had to be repaired when its state was last read, in words.
        serial: Names the stream with its classes, for the ids of answers.
        unwritten: Whether its facts have changed since they were written.
        usual_size: Height and width of its images, as far as these are resized on the device.
    """

    def __init__(self, name: str, facts: StreamFacts | None = None, *, is_new: bool = False) -> None:
        self.name, self.is_new = name, is_new
        self.resident: Resident | None = None
        self.gone = self.unwritten = False
        self.recovered: str | None = None
        self.usual_size: tuple[int, int] | None = None
        self.serial = next(_serials)
        self._facts = facts
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ServedStream({self.name!r})"

    @property
    def facts(self) -> StreamFacts | None:
        """What is known of it; None until that is read."""
        return self._facts

    def update(self, change: Callable[[StreamFacts], StreamFacts]) -> StreamFacts:
        """Change what is known; several threads may do so."""
        with self._lock:
            self._facts = change(self._facts or StreamFacts())
            self.unwritten = True
            return self._facts

    def set_facts(self, facts: StreamFacts) -> None:
        """Take over what was read."""
        with self._lock:
            self._facts = facts

    def renumber(self) -> None:
        """Its answers so far are no more to be found."""
        self.serial = next(_serials)
