"""Commands such as ``ramen classify`` in processes that start quickly."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ramen.cli import app
from ramen.methods._method import Method
from ramen.state.log import Log
from tests.helpers.forked_processes import CONTEXT
from tests.helpers.interrupts import take_interrupts

PATIENCE = 120  # seconds until a process that should have done something is given up


class ClassifyProcess:
    """A running command.

    Args:
        arguments: Of the command, after its name.
        folder: Where it runs, and where its standard streams are kept.
        dies_at: The name of a file, and how many bytes it has when the process is killed, in the middle of a
            write.
        batch_seconds: How long each batch takes at least.
        state_seconds: How long it takes until what a batch taught is on disk, at least.
        stdin: What it reads.
        command: The name of the command.
        environment: Variables that are set for it.
        streams: Before the names of its standard streams, to tell several in one folder apart.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        folder: Path,
        *,
        dies_at: tuple[str, int] | None = None,
        batch_seconds: float = 0.0,
        state_seconds: float = 0.0,
        stdin: str = "",
        command: str = "classify",
        environment: Mapping[str, str] | None = None,
        streams: str = "",
    ) -> None:
        self._streams = [folder / f"{streams}{name}" for name in ("stdin", "stdout", "stderr")]
        self._streams[0].write_text(stdin)
        for stream in self._streams[1:]:
            stream.touch()  # read before the process has begun
        changes = [(_slow_down, (Method, "predict", batch_seconds))] if batch_seconds else []
        changes += [(_slow_down, (Log, "append", state_seconds))] if state_seconds else []
        changes += [(_die_at, dies_at)] if dies_at is not None else []
        changes += [(_set_variables, (dict(environment),))] if environment else []
        given = ([command, *map(str, arguments)], folder, self._streams, changes)
        self._process = CONTEXT.Process(target=_run, args=given)
        self._process.start()

    def __enter__(self) -> "ClassifyProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()

    def send(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def wait(self) -> int:
        """Its exit code; minus the number of the signal that killed it."""
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None, "it did not end"
        return self._process.exitcode

    def wait_for(self, condition) -> None:
        """Wait until something happens while it runs."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert self._process.is_alive(), self.stderr
            assert time.monotonic() < end, "nothing happened"
            time.sleep(0.02)

    @property
    def stdout(self) -> str:
        return self._streams[1].read_text()

    @property
    def stderr(self) -> str:
        return self._streams[2].read_text()


def _run(
    arguments: list[str], folder: Path, streams: list[Path], changes: list[tuple[Callable, tuple]]
) -> None:
    take_interrupts()
    os.chdir(folder)
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    for change, given in changes:
        change(*given)
    app(arguments)


def _set_variables(environment: dict[str, str]) -> None:
    os.environ.update(environment)


def _die_at(name: str, size: int) -> None:
    plain = os.write

    def write(file: int, data: bytes) -> int:
        if os.path.basename(os.readlink(f"/proc/self/fd/{file}")) == name:
            there = os.fstat(file).st_size
            if there + len(data) >= size:
                plain(file, data[: max(0, size - there)])
                os.kill(os.getpid(), signal.SIGKILL)
        return plain(file, data)

    os.write = write


def _slow_down(kind: type, name: str, seconds: float) -> None:
    quickly = getattr(kind, name)

    def slowly(*given, **named):
        time.sleep(seconds)
        return quickly(*given, **named)

    setattr(kind, name, slowly)
