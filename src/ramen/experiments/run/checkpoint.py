"""A run that is under way, on disk: it goes on where it was broken off, and no two processes run the same."""

import fcntl
import json
import os
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor

from ramen.experiments.run.results import DamagedResultError, read_result, write_result
from ramen.utils.atomic_files import atomic_write

_FACTS = "checkpoint"  # no .json: it is no result, and whoever collects results must not take it for one
_PATIENCE = 20  # so many times as long as a checkpoint takes to write, nothing is written again


class RunningError(RuntimeError):
    """Another process has this experiment under way."""


class Checkpoint:
    """What is kept of one experiment while it runs.

    The tensors go into a file of a new name, then the facts, which name that file and its checksum, take the
    place of the old facts at once: whenever the process is killed, the facts there are go with their tensors.

    Args:
        path: The experiment's result, beside which a folder is used.
        identity: What a checkpoint must be of to be continued, in plain values.
        seconds: How often to write, unless writing takes long.
        tell: Where to say what the user must know.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], seconds: float, tell: Callable[[str], object]
    ) -> None:
        self.folder = path.with_name(f".{path.stem}.partial")
        self._identity, self._seconds, self._tell = dict(identity), seconds, tell
        self._last, self._took, self._failed = time.monotonic(), 0.0, False

    def due(self) -> bool:
        """Whether enough time has passed since the last one."""
        return time.monotonic() - self._last >= max(self._seconds, _PATIENCE * self._took)

    def save(self, state: Callable[[], tuple[dict[str, Any], dict[str, Tensor]]]) -> bool:
        """Write what ``state`` gives; without room for it the run goes on without, and that is said once."""
        if self._failed:
            return False
        start = time.monotonic()
        try:
            self._write(*state())
        except (OSError, torch.OutOfMemoryError) as error:
            self._failed = True
            self._tell(f"No checkpoint can be written ({error}); if this run is broken off, it begins anew.")
        self._last = time.monotonic()
        self._took = self._last - start
        return not self._failed

    def _write(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        file = self.folder / f"tensors-{secrets.token_hex(4)}.pt"
        try:
            with atomic_write(file) as raw:
                summed = _Summed(raw)
                torch.save(tensors, cast("BinaryIO", summed))
            content = {
                "identity": self._identity,
                "facts": facts,
                "tensors": file.name,
                "crc32": summed.crc32,
            }
            write_result(self.folder / _FACTS, content)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        self._forget_all_but(file.name)

    def _forget_all_but(self, name: str) -> None:
        for other in self.folder.glob("tensors-*.pt"):
            if other.name != name:
                other.unlink(missing_ok=True)

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """What was saved; None where there is nothing, or nothing of use, which is set aside and said."""
        if not (self.folder / _FACTS).exists():
            return None  # what a process left that was killed at its first checkpoint is of no use
        try:
            content = read_result(self.folder / _FACTS)
            if content["identity"] != self._identity:
                differing = [
                    key for key in self._identity if content["identity"].get(key) != self._identity[key]
                ]
                raise ValueError(f"it belongs to something else, by its {', '.join(differing) or 'content'}")
            tensors = self._tensors(self.folder / content["tensors"], content["crc32"])
            return dict(content["facts"]), tensors
        except (DamagedResultError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            self.set_aside(str(error))
            return None

    def _tensors(self, file: Path, crc32: int) -> dict[str, Tensor]:
        with file.open("rb") as raw:
            found = 0
            while block := raw.read(1 << 22):
                found = zlib.crc32(block, found)
        if found != crc32:
            raise ValueError(f"{file.name} is damaged: its checksum is {found}, expected {crc32}")
        try:
            return dict(torch.load(file, map_location="cpu", weights_only=True))
        except Exception as error:  # whatever a damaged file brings about
            raise ValueError(f"{file.name} cannot be read: {error}") from None

    def set_aside(self, why: str) -> None:
        """Keep a checkpoint that cannot be continued under another name, so that the run can begin anew."""
        aside = self.folder.with_name(f"{self.folder.name}-unusable-{secrets.token_hex(4)}")
        os.replace(self.folder, aside)
        self._tell(
            f"The checkpoint {self.folder} cannot be continued ({why}): it is now {aside}; starting anew."
        )

    def remove(self) -> None:
        """The result is written: nothing of this is needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


class _Summed:
    """A file that sums up what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.crc32 = file, 0

    def write(self, data: Any) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Be the only one to run the experiment of this result; a process that has died holds nothing.

    The system gives the lock back when a process ends, however it does. A file that says another host held it
    last is believed, as not every shared folder passes locks on.
    """
    file = path.with_name(f".{path.stem}.lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquire(file)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        yield
    finally:
        file.unlink(missing_ok=True)  # while it is held: who waits for this file sees that it is gone
        os.close(handle)


def _acquire(file: Path) -> int:
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(handle)
            os.close(handle)
            who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
            raise RunningError(f"{who} is running this experiment ({file}): wait for it, or end it") from None
        owner = _owner(handle)
        if owner.get("host", socket.gethostname()) != socket.gethostname():
            os.close(handle)
            raise RunningError(
                f"process {owner.get('pid', '?')} on {owner['host']} has this experiment under way; "
                f"if it has ended, remove {file}"
            )
        if _is(handle, file):
            return handle
        os.close(handle)  # its last owner removed it in between


def _is(handle: int, file: Path) -> bool:
    try:
        there = file.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_ino, own.st_dev) == (there.st_ino, there.st_dev)


def _owner(handle: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}
