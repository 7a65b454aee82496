"""One stream of an engine: what is known of it, its folder, and, while it is loaded, what adapts to it."""

import asyncio
import itertools
import json
import logging
import resource
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ramen.client.operations import FeedbackCounts
from ramen.methods import Method
from ramen.predict.answers import BatchAnswers
from ramen.serve.engine.state_folder import STREAMS, owned, stream_names
from ramen.serve.engine.statistics import RecentAnswers
from ramen.state import StateStore, classes_in, local_folder
from ramen.utils.files import TemporaryFolder, atomic_write, make_folder

_FACTS = "stream.json"
_LONGEST_FACTS = 2**26  # bytes
_MOST_OPEN = 4096  # stores: each has a file for its lock
_COUNTS = ("images", "changed", "fallbacks", "errors", "memory_bytes")
_FEEDBACK = tuple(one.name for one in fields(FeedbackCounts))
_SUM = "sha256"
_serials = itertools.count(1)
_log = logging.getLogger("ramen")


class DamagedFactsError(ValueError):
    """What is known of a stream cannot be read."""


@dataclass(frozen=True)
class StreamFacts:
    """Counts and classes of a stream; each change makes a new object.

    Attributes:
        classes: Its own classes; None if it has those of the model.
        created: When, in seconds since 1970.
        last_used: When its last image came; None if none has come.
        images: Answered since it was created or reset.
        changed: Of these, how many adaptation gave another label.
        fallbacks: Of these, how many were answered zero-shot because the adaptation failed.
        errors: Images without an answer.
        feedback: How right its answers were.
        memory_bytes: What its memory took when it was last loaded.
        saved: How many images its state on the disk has learned from, at least.
    """

    classes: tuple[str, ...] | None = None
    created: float = field(default_factory=time.time)
    last_used: float | None = None
    images: int = 0
    changed: int = 0
    fallbacks: int = 0
    errors: int = 0
    feedback: FeedbackCounts = field(default_factory=FeedbackCounts)
    memory_bytes: int = 0
    saved: int = 0

    def forgotten(self) -> "StreamFacts":
        """After a reset."""
        return StreamFacts(classes=self.classes, created=self.created, last_used=self.last_used)

    def to_json(self) -> bytes:
        """As a file, with a checksum of all the rest."""
        values = asdict(self)
        return json.dumps({**values, _SUM: _checksum(values)}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "StreamFacts":
        """What ``to_json`` returned, here or in version 0.2, which had no checksum.

        Raises:
            DamagedFactsError: That is not what it is.
        """
        try:
            values = json.loads(content)
            known = {one.name for one in fields(cls)}
            is_sealed = _SUM in values
            if values.keys() - {_SUM} != (known if is_sealed else known - {"saved"}):
                raise ValueError("other names than expected")
            if is_sealed and values.pop(_SUM) != _checksum(values):
                raise ValueError("the checksum is wrong")
            return cls._from_values(values)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise DamagedFactsError(f"{_FACTS} cannot be read: {error!r}") from None

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> "StreamFacts":
        counts = {name: int(values[name]) for name in _COUNTS}
        classes, last_used, feedback = values["classes"], values["last_used"], values["feedback"]
        return cls(
            classes=None if classes is None else tuple(map(str, classes)),
            created=float(values["created"]),
            last_used=None if last_used is None else float(last_used),
            feedback=FeedbackCounts(**{name: int(feedback[name]) for name in _FEEDBACK}),
            saved=int(values.get("saved", 0)),
            **counts,
        )


def _checksum(values: Mapping[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@dataclass(eq=False)
class LoadedStream:
    """What a stream has in memory; used by the thread of the device, or by whoever holds it.

    Attributes:
        method: Adapts to the stream.
        store: Keeps what it learns; None if the disk could not be reached: then nothing is kept.
        answers: Turns predictions into numbers.
        recent: Its last answers.
        bytes: What its memory takes.
        served: Whether a batch was answered since it was loaded.
    """

    method: Method
    store: StateStore | None
    answers: BatchAnswers
    recent: RecentAnswers
    bytes: int
    served: bool = False

    def entries(self) -> tuple[int, int] | None:
        """How many entries its memories hold, and how many they can hold; None if they do not say.

        It waits for a GPU, so that the thread of the device does not ask.
        """
        known = [
            fill for memory in self.method.state.memories.values() if (fill := memory.fill()) is not None
        ]
        return (sum(held for held, _ in known), sum(most for _, most in known)) if known else None


class Stream:
    """A stream, by identity: one that is deleted and created again is another one.

    Args:
        name: Its name.
        is_new: Whether nothing of it has been written yet.

    Attributes:
        facts: What is known of it; None until that is read.
        loaded: None while it is on disk only. Changed by whoever holds the stream.
        gone: Whether it was deleted.
        recovered: What had to be repaired when it was last read, in words.
        serial: Names the stream with its classes, for the ids of answers.
        unwritten: Whether its facts have changed since they were written.
        images: That wait or are being answered; the scheduler's, like the rest.
        nbytes: Of these.
        in_flight: Batches that it is in.
        held: Whether somebody has it alone.
        wanted: How many wait to have it alone.
    """

    def __init__(self, name: str, *, is_new: bool = False) -> None:
        self.name, self.is_new = name, is_new
        self.facts: StreamFacts | None = None
        self.loaded: LoadedStream | None = None
        self.gone = self.unwritten = False
        self.recovered: str | None = None
        self.serial = next(_serials)
        self.images = self.nbytes = self.in_flight = self.wanted = 0
        self.held = False
        self.freed: list[asyncio.Future[None]] = []  # of those that want it

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    def update(self, **changes: Any) -> StreamFacts:
        """Change what is known."""
        return self.set_facts(replace(self.facts or StreamFacts(), **changes))

    def set_facts(self, facts: StreamFacts) -> StreamFacts:
        """Replace what is known."""
        self.facts, self.unwritten = facts, True
        return facts

    def renumber(self) -> None:
        """Earlier answers can no longer be looked up."""
        self.serial = next(_serials)


class StreamFolders:
    """One folder per stream, with the state of its method and its facts; for the threads of the disk.

    Args:
        state: The folder of a service, which this process alone uses; None for a temporary one, which
            ``close`` removes.
        shard: Which of how many engines of the service this one is.

    Attributes:
        most_open: How many stores may be open at a time.

    Raises:
        LockedError: Another process uses the folder.
    """

    def __init__(self, state: str | None, shard: tuple[int, int] = (0, 1)) -> None:
        with ExitStack() as stack:
            if state is None:
                temporary = stack.enter_context(closing(TemporaryFolder("ramen-streams-")))
                for left in temporary.left:
                    _log.info("removed %s, which a service without --state had left when it was killed", left)
                self._root = temporary.path
            else:
                self._root = stack.enter_context(owned(local_folder(state, "state"), *shard))
            self._folder = self._root / STREAMS
            make_folder(self._folder)
            self._stack = stack.pop_all()
        self.most_open = min(_MOST_OPEN, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))

    def names(self) -> list[str]:
        """Of all streams."""
        return stream_names(self._root)

    def location(self, name: str) -> Path:
        """Where the store of a stream is."""
        return self._folder / name

    def read(self, name: str) -> tuple[StreamFacts | None, str | None]:
        """What is known of a stream, None if there is none; and what is damaged, in words.

        The state itself names its classes: without them nothing of it could be used.
        """
        path = self.location(name) / _FACTS
        try:
            with path.open("rb") as file:
                return StreamFacts.from_json(file.read(_LONGEST_FACTS)), None
        except (FileNotFoundError, NotADirectoryError):
            classes = classes_in(self.location(name))
            return (None, None) if classes is None else (StreamFacts(classes), f"{_FACTS} is missing")
        except (OSError, DamagedFactsError) as error:
            return StreamFacts(classes_in(self.location(name))), f"{error}; counts start again"

    def read_all(self, names: Sequence[str]) -> list[tuple[StreamFacts | None, str | None]]:
        """The same of several streams."""
        return [self.read(name) for name in names]

    def write(self, name: str, facts: StreamFacts) -> None:
        """Replace what is known of a stream, completely or not at all."""
        path = self.location(name) / _FACTS
        if path.is_dir():
            shutil.rmtree(path)
        # without classes of its own, a stream is only its counts, which may be lost in a power cut
        with atomic_write(path, durable=facts.classes is not None) as file:
            file.write(facts.to_json())

    def remove_state(self, name: str) -> None:
        """Remove all of a stream but its facts."""
        folder = self.location(name)
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name != _FACTS:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove a stream."""
        shutil.rmtree(self.location(name), ignore_errors=True)

    def close(self) -> None:
        """Leave the folder to others, or remove a temporary one."""
        self._stack.close()
