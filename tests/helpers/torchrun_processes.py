"""Commands in the processes of a group, started as ``torchrun`` starts them, but quickly."""

import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.helpers.classify_process import ClassifyProcess


class TorchrunProcesses:
    """Running processes of one command.

    Args:
        count: How many.
        arguments: Of the command, after its name.
        folder: Where they run, and where their standard streams are kept.
        timeout: Seconds that they wait for each other.
        changes: Further arguments of ``ClassifyProcess``, by process.
        stdin: What each of them could read.
        command: Its name.
        missing: Processes that are never started.
    """

    def __init__(
        self,
        count: int,
        arguments: Sequence[object],
        folder: Path,
        *,
        timeout: float = 60.0,
        changes: Mapping[int, Mapping[str, Any]] | None = None,
        stdin: str = "",
        command: str = "classify",
        missing: Sequence[int] = (),
    ) -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            port = listening.getsockname()[1]
        common = {
            "TORCHELASTIC_RUN_ID": "none",
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RAMEN_GROUP_TIMEOUT": str(timeout),
        }
        self._stack = ExitStack()
        self.processes = [
            self._stack.enter_context(
                ClassifyProcess(
                    arguments,
                    folder,
                    environment={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    streams=f"{rank}-",
                    stdin=stdin,
                    command=command,
                    **(changes or {}).get(rank, {}),
                )
            )
            for rank in range(count)
            if rank not in missing
        ]

    def __enter__(self) -> "TorchrunProcesses":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def first(self) -> ClassifyProcess:
        return self.processes[0]

    def wait(self) -> list[int]:
        """Their exit codes."""
        return [process.wait() for process in self.processes]

    def send(self, number: int = signal.SIGTERM) -> None:
        """Send all of them a signal, as ``torchrun`` passes on what it gets."""
        for process in self.processes:
            process.send(number)
