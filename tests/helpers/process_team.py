"""A team of processes with gloo groups that runs many functions, as each start takes seconds."""

import multiprocessing
import os
import pickle
import secrets
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.helpers.interrupts import take_interrupts
from tests.helpers.slow_tests import RUN_SLOW_TESTS

_PRELOADED = ["torch", "torch.distributed", "ramen.methods.ramen", "ramen.testing"]
_ANSWER_SECONDS = 120.0
TEAM_SIZE = 8 if RUN_SLOW_TESTS else 4

TEAM_NAME = "ramen-test-team"  # of processes that stay from test to test


class ProcessTeam:
    """``size`` processes, the first ``n`` of which can be used as a group.

    Args:
        size: How many.
        folder: For the file by which they find each other.
        timeout: Seconds after which a process gives the others up.
    """

    def __init__(self, size: int, folder: Path, timeout: float = 60.0) -> None:
        self.size, self._folder, self._timeout = size, folder, timeout
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._sound = False  # processes that have lost each other are replaced

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)  # torch is imported once
        meeting = self._folder / f"team-{secrets.token_hex(4)}"
        for rank in range(self.size):
            here, there = context.Pipe()
            arguments = rank, self.size, str(meeting), self._timeout, there
            process = context.Process(target=_serve, args=arguments, daemon=True, name=f"{TEAM_NAME}-{rank}")
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        self._sound = True

    def run(self, function: Callable[..., Any], *arguments: Any, processes: int | None = None) -> list[Any]:
        """``function(group, *arguments)`` in a group of the first ``processes``; their results in order.

        Raises:
            RuntimeError: With the traceback of the first one that has raised an error.
        """
        outcomes = self.outcomes(function, *arguments, processes=processes)
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                raise RuntimeError(f"in a process of the group:\n{outcome.text}")
        return outcomes

    def outcomes(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        processes: int | None = None,
        without: int | None = None,
    ) -> list[Any]:
        """The same, with a ``Failure`` for a process that has raised an error; ``without`` one's answer."""
        if not self._sound:
            self.close()
            self._start()
        count = self.size if processes is None else processes
        for pipe in self._pipes[:count]:
            pipe.send_bytes(pickle.dumps((function, arguments, count)))
        pipes = [pipe for rank, pipe in enumerate(self._pipes[:count]) if rank != without]
        found = [_answer(pipe) for pipe in pipes]
        self._sound = without is None and not any(isinstance(one, Failure) for one in found)
        return found

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()  # they end when nobody is there
        for process in self._processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._processes = [], []


class Failure:
    """What a process has raised."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Failure({self.text})"


def _answer(pipe: Connection) -> Any:
    try:
        if not pipe.poll(_ANSWER_SECONDS):
            return Failure("it did not answer")
        return pickle.loads(pipe.recv_bytes())
    except (EOFError, ConnectionResetError):
        return Failure("it has died")


def _serve(rank: int, size: int, meeting: str, timeout: float, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    take_interrupts()
    torch.set_num_threads(1)
    os.environ["RAMEN_GROUP_TIMEOUT"] = str(timeout)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    groups = {count: dist.new_group(list(range(count))) for count in range(1, size + 1)}
    while True:
        try:
            function, arguments, count = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # without waiting for the others
        try:
            answer = function(groups[count], *arguments)
        except Exception:
            answer = Failure(traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))


def cut(rows: Sequence[Any] | Any, sizes: Sequence[int], rank: int) -> Any:
    """The part of a process, if the processes get so many."""
    start = sum(sizes[:rank])
    return rows[start : start + sizes[rank]]
