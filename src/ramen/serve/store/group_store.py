"""The state of a method that a group of processes shares, in a folder: snapshots that all of them write.

A log of what each batch adds, as one process writes it, would be many logs that end at different batches when
the processes are killed. A snapshot is one state of all of them, and replaces the one before it in one step.
It is a folder in the store's folder, and overrides a log of one process that is there too. Whoever opens a
store takes over what is there, log or snapshot, and removes it once its own has the same content.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ramen.methods import _saved_folder
from ramen.methods._base import Method
from ramen.methods._saved_state import ForeignStateError
from ramen.serve.result import Result
from ramen.serve.store.opening import read_log, snapshot_answers
from ramen.serve.store.save_times import SaveTimes
from ramen.serve.store.segments import LocalSegments
from ramen.utils.peers import GroupError, PeerFailedError, Peers

log = logging.getLogger("ramen")


def open_group_store(
    location: str | os.PathLike[str], method: Method, *, save_every: int | str = "batch"
) -> "GroupStore":
    """Open the store in a folder that all processes see; all of them call this.

    Args:
        location: The folder, created if it is missing.
        method: A state in the store replaces what it has learned so far.
        save_every: When a snapshot is written: after each "batch", after that many images, or after so many
            seconds, such as "10s"; but no more often than costs a twentieth of the time.

    Raises:
        ValueError: The state is of another model, class list or method, or damaged; it stays as it is.
        LockedError: Somebody else uses the store.
    """
    if "://" in os.fspath(location):
        raise ValueError(
            f"store must be a folder that all processes of the group see, got the URL {os.fspath(location)}"
        )
    return GroupStore(Path(location).expanduser(), method, SaveTimes(save_every))


class GroupStore:
    """Writes what a group's method learns; ``open_group_store`` opens one.

    All processes call everything in step.

    Attributes:
        answers: The results of the last batch that the store has learned from, when it was opened.
        recovered: None: whatever is damaged is refused.
        failures: How many times what was learned could not be written.
    """

    recovered = None

    def __init__(self, folder: Path, method: Method, times: SaveTimes) -> None:
        if method.peers is None:
            raise ValueError("method must belong to a group of processes")
        self._peers: Peers = method.peers
        self._method, self._times, self.failures = method, times, 0
        self._segments = LocalSegments(folder)
        with ExitStack() as opening:
            self._peers.attempt(lambda: self._lock(opening), "opening the store")
            self._peers.attempt(lambda: self._check_visible(folder), "opening the store")
            self.answers = self._read()
            self._stack = opening.pop_all()
        self._unsaved: Sequence[Result] = self.answers  # of the last batch, once there is one
        self._learned = 0  # results since the last snapshot
        self._epoch = method.epoch

    def _lock(self, opening: ExitStack) -> None:
        if self._peers.rank == 0:
            opening.enter_context(self._segments.lock())

    def _check_visible(self, folder: Path) -> None:
        if not self._segments.locked():
            raise ValueError(f"store must be a folder that all processes of the group see, got {folder}")

    def _read(self) -> tuple[Result, ...]:
        try:
            if self._peers.numbers(self._segments.snapshot() is not None, "opening the store")[0]:
                self._method.load(self._segments.snapshot_folder)
                return snapshot_answers(self._segments.snapshot_folder)
            found = self._peers.attempt(lambda: read_log(self._segments), "reading the state")
            if found is None:
                return ()
            self._method.load_state_dict(self._method.counted_once(found[0]))
        except ForeignStateError as error:
            raise ForeignStateError(f"the store cannot be used, and stays as it is: {error}") from None
        return found[1]

    # -- what the predictor calls -------------------------------------------------------------------

    def save(self, results: Sequence[Result]) -> None:
        """Write a snapshot, if it is time to, which the first process decides.

        Returns when it is on the disk. If it cannot be written, that is logged, and tried again with the next
        batch: the stream continues.
        """
        self._unsaved = results
        self._learned += len(results)
        due = self._times.due(self._learned, patient=True)
        if self._peers.numbers(due, "agreeing on when to save")[0]:
            self._write()

    def flush(self) -> None:
        """Write what is not on the disk yet; raises why it cannot be written."""
        if self._learned or self._epoch != self._method.epoch:
            error = self._write()
            if error is not None:
                raise error

    def close(self, *, save: bool = True) -> None:
        """Write the rest and leave the store to others.

        Args:
            save: False if the processes are not in step any more: the last snapshot stays.
        """
        try:
            if save:
                self.flush()
        except GroupError as error:
            if not isinstance(error, PeerFailedError):
                raise
        except Exception:
            log.exception("what was learned last could not be saved")
        finally:
            self._stack.close()

    def _write(self) -> Exception | None:
        """The error if it failed in one of the processes."""
        self._times.started()
        folder, facts = self._segments.snapshot_folder, {"answers": [one.to_dict() for one in self._unsaved]}
        try:
            state = self._peers.attempt(self._method.state_dict, "saving")
            _saved_folder.write(folder, state, self._peers, facts)
        except Exception as error:
            if isinstance(error, GroupError) and not isinstance(error, PeerFailedError):
                raise  # they have lost each other
            self._fail(error)
            return error
        self._times.ended()
        self._learned, self._epoch = 0, self._method.epoch
        if self._peers.rank == 0:
            for number in self._segments.numbers():  # what one process has left, and is in the snapshot now
                self._segments.remove(number)
        return None

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        if self._peers.rank == 0 and self.failures.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ... time
            log.error(
                "what was learned could not be saved (%s); answers continue, and it is tried again with the "
                "next batch (%d times so far)",
                error,
                self.failures,
            )
