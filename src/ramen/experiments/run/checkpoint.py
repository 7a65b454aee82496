"""Checkpoints: an interrupted run resumes where it stopped."""

import os
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor

from ramen.experiments.run.results import DamagedResultError, read_result, write_result
from ramen.utils.atomic_files import atomic_write

_FACTS = "checkpoint"  # without .json, so that nobody who collects results takes it for one
_PATIENCE = 20  # pause between checkpoints, as a multiple of the time that one takes to write


class Checkpoint:
    """The saved state of one experiment while it runs.

    The tensors are written to a file with a new name. Then the facts, which name that file and its checksum,
    replace the old facts atomically: whenever the process is killed, facts and tensors match.

    Args:
        path: The experiment's result; the checkpoint is in a folder next to it.
        identity: What must be equal for a run to resume, in plain values.
        seconds: How often to save, unless writing takes long.
        warn: Called with messages for the user.
        writes: Whether this process writes and removes it; of a group, one does.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any],
        seconds: float,
        warn: Callable[[str], object],
        *,
        writes: bool = True,
    ) -> None:
        self._writes = writes
        self.folder = path.with_name(f".{path.stem}.partial")
        self._identity, self._seconds, self._warn = dict(identity), seconds, warn
        self._last, self._took, self._failed = time.monotonic(), 0.0, False

    def due(self) -> bool:
        """Whether enough time has passed since the last save."""
        return time.monotonic() - self._last >= max(self._seconds, _PATIENCE * self._took)

    def save(
        self,
        state: Callable[[], tuple[dict[str, Any], dict[str, Tensor]]],
        write_more: Callable[[Path], None] | None = None,
    ) -> bool:
        """Write the state that ``state`` returns; if that fails, warn once and save no more.

        Args:
            state: Facts and tensors.
            write_more: Writes what belongs to them to a new folder, before they are written.
        """
        if self._failed:
            return False
        start = time.monotonic()
        try:
            self._write(*state(), write_more)
        except (OSError, torch.OutOfMemoryError) as error:
            self._failed = True
            self._warn(f"No checkpoint can be written ({error}); if this run is interrupted, it starts over.")
        self._last = time.monotonic()
        self._took = self._last - start
        return not self._failed

    def _write(
        self,
        facts: dict[str, Any],
        tensors: dict[str, Tensor],
        write_more: Callable[[Path], None] | None,
    ) -> None:
        more = None if write_more is None else self.folder / f"more-{facts['done']}"
        if write_more is not None and more is not None:
            write_more(more)
        if not self._writes:
            return
        file = self.folder / f"tensors-{secrets.token_hex(4)}.pt"
        try:
            with atomic_write(file) as raw:
                summed = _Checksummed(raw)
                torch.save(tensors, cast("BinaryIO", summed))
            content = {
                "identity": self._identity,
                "facts": facts,
                "tensors": file.name,
                "crc32": summed.crc32,
                "more": None if more is None else more.name,
            }
            write_result(self.folder / _FACTS, content)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        self._remove_others(file.name, None if more is None else more.name)

    def _remove_others(self, name: str, more: str | None) -> None:
        for other in self.folder.glob("tensors-*.pt"):
            if other.name != name:
                other.unlink(missing_ok=True)
        for other in self.folder.glob("more-*"):
            if other.name != more:
                shutil.rmtree(other, ignore_errors=True)

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor], Path | None] | None:
        """The saved state, and the folder that belongs to it, if there is one; None if nothing was saved.

        One that cannot be used is set aside with a warning.
        """
        if not (self.folder / _FACTS).exists():
            return None  # nothing useful, even if a process was killed during its first save
        try:
            content = read_result(self.folder / _FACTS)
            if content["identity"] != self._identity:
                differing = [
                    key for key in self._identity if content["identity"].get(key) != self._identity[key]
                ]
                raise ValueError(f"it belongs to a run with another {', '.join(differing) or 'content'}")
            tensors = self._tensors(self.folder / content["tensors"], content["crc32"])
            more = content.get("more")
            return dict(content["facts"]), tensors, None if more is None else self.folder / more
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
        except Exception as error:  # a damaged file can raise anything
            raise ValueError(f"{file.name} cannot be read: {error}") from None

    def set_aside(self, why: str) -> None:
        """Rename a checkpoint that cannot be used, so that the run can start over."""
        if not self._writes:
            return
        aside = self.folder.with_name(f"{self.folder.name}-unusable-{secrets.token_hex(4)}")
        os.replace(self.folder, aside)
        self._warn(f"The checkpoint {self.folder} cannot be used ({why}). It is now {aside}; starting over.")

    def give_up(self) -> None:
        """Save no more, because another process of the group cannot."""
        self._failed = True

    def remove(self) -> None:
        """Remove the checkpoint after the result has been written."""
        if not self._writes:
            return
        shutil.rmtree(self.folder, ignore_errors=True)


class _Checksummed:
    """A file that computes the checksum of what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.crc32 = file, 0

    def write(self, data: Any) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()
