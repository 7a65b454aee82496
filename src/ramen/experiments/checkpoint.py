"""Checkpoints: an interrupted run resumes where it stopped."""

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ramen.utils.files import atomic_write
from ramen.utils.sealed import seal, unseal

_PATIENCE = 20  # pause between checkpoints, as a multiple of the time that one takes to write

State = tuple[dict[str, Any], dict[str, Tensor]]  # facts in plain values, and tensors


class Checkpoint:
    """The saved state of one experiment while it runs: one file, in which no changed byte goes unnoticed.

    Args:
        file: Replaced as a whole: whenever the process is killed, it has the old state or the new one.
        identity: What must be equal for a run to resume, in plain values.
        seconds: How often to save, unless writing takes long.
        warn: Called with messages for the user.
        clock: What tells the time.
    """

    def __init__(
        self,
        file: Path,
        identity: Mapping[str, Any],
        seconds: float,
        warn: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file, self._older = file, file.with_suffix(".partial")
        self._identity, self._seconds, self._warn, self._clock = dict(identity), seconds, warn, clock
        self._last, self._took, self._failed = clock(), 0.0, False

    def due(self) -> bool:
        """Whether enough time has passed since the last save."""
        return self._clock() - self._last >= max(self._seconds, _PATIENCE * self._took)

    def save(self, state: Callable[[], State]) -> None:
        """Write the state that ``state`` returns; if that fails, warn once and save no more."""
        if self._failed:
            return
        start = self._clock()
        try:
            facts, tensors = state()
            about = {"identity": json.dumps(self._identity), "facts": json.dumps(facts)}
            with atomic_write(self.file) as file:
                for piece in seal({name: tensor.cpu() for name, tensor in tensors.items()}, about):
                    file.write(piece)
        except (OSError, torch.OutOfMemoryError) as error:
            self._failed = True
            self._warn(f"No checkpoint can be written ({error}); if this run is interrupted, it starts over.")
        self._last = self._clock()
        self._took = self._last - start

    def load(self) -> State | None:
        """The saved state; None if nothing was saved. One that cannot be used is set aside with a warning."""
        try:
            if not self.file.exists():
                if self._older.exists():
                    raise ValueError("it was written by an earlier version")
                return None  # nothing useful, even if a process was killed during its first save
            tensors, about = unseal(self.file.read_bytes())
            identity, facts = json.loads(about["identity"]), json.loads(about["facts"])
            if identity != self._identity:
                differing = [key for key in self._identity if identity.get(key) != self._identity[key]]
                raise ValueError(f"it belongs to a run with another {', '.join(differing) or 'content'}")
            return facts, tensors
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            self.set_aside(str(error))
            return None

    def set_aside(self, why: str) -> None:
        """Rename a checkpoint that cannot be used, so that the run can start over."""
        found = self.file if self.file.exists() else self._older
        aside = found.with_name(f"{found.name}-unusable-{secrets.token_hex(4)}")
        os.replace(found, aside)
        self._warn(f"The checkpoint {found} cannot be used ({why}). It is now {aside}; starting over.")

    def remove(self) -> None:
        """Remove the checkpoint after the result has been written."""
        self.file.unlink(missing_ok=True)
        for unfinished in self.file.parent.glob(f".{self.file.name}.*.tmp"):  # of a process that was killed
            unfinished.unlink(missing_ok=True)
