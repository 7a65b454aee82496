"""A server in a process of its own, that can be stopped, killed and looked at."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from service_checks.http_connection import Address, ask
from service_checks.options import CLASSES, CheckOptions

_TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """Starts a command and waits until it answers; a context manager that stops it.

    Args:
        command: With its arguments.
        port: Where it will listen.
        log: Standard output and error are appended to this file.
        ready_path: Answers with 200 as soon as the server can work.
        patience: Seconds that it may take until then.
        checkout: Whose library and benchmarks it runs; by default this one's.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        log: Path,
        ready_path: str = "/readyz",
        patience: float = 180.0,
        checkout: Path | None = None,
    ) -> None:
        self.address, self.log = Address(port), log
        started = time.monotonic()
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True, env=_environment(checkout)
            )
        try:
            self._wait(ready_path, started + patience)
        except BaseException:
            self.kill()
            raise
        self.start_seconds = time.monotonic() - started

    def _wait(self, path: str, deadline: float) -> None:
        while time.monotonic() < deadline and self.alive:
            with suppress(OSError):
                if ask(self.address, "GET", path).status == 200:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"the server did not start; the end of its log:\n{self.log_text()[-3000:]}")

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def log_text(self) -> str:
        """All that it has written."""
        return self.log.read_text(errors="replace")

    def stop(self, patience: float = 60.0) -> int:
        """SIGTERM; returns the exit code when it has ended."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the server did not stop within {patience:.0f} s of SIGTERM") from None

    def kill(self) -> None:
        """SIGKILL, also for processes that it has started."""
        for pid in reversed([self.pid, *_children(self.pid)]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def memory_mib(self) -> float:
        """Resident memory of the process alone."""
        return _kibibytes(self.pid, "status", "VmRSS") / 1024

    def peak_mib(self) -> float:
        """The most resident memory that it has had."""
        return _kibibytes(self.pid, "status", "VmHWM") / 1024

    def family_mib(self) -> float:
        """Memory of the process and those that it has started; what they share counts once."""
        shares = 0
        for pid in (self.pid, *_children(self.pid)):
            with suppress(OSError):
                shares += _kibibytes(pid, "smaps_rollup", "Pss")
        return shares / 1024

    def cpu_ms(self) -> tuple[float, float]:
        """CPU time so far: of the process, and of those that it has started."""
        return _spent_ms(self.pid), sum(map(_spent_ms, _children(self.pid)))

    def stream(self, name: str) -> Any:
        """What the engine says of a stream."""
        return ask(self.address, "GET", f"/v1/streams/{name}").json()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()


def _environment(checkout: Path | None) -> dict[str, str]:
    folder = Path(__file__).parents[1] if checkout is None else checkout.absolute() / "benchmarks"
    paths = [str(folder), str(folder.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _kibibytes(pid: int, file: str, field: str) -> int:
    return int(Path(f"/proc/{pid}/{file}").read_text().split(f"{field}:")[1].split()[0])


def _spent_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / _TICKS


def _children(pid: int) -> list[int]:
    """Processes that a process has started, and those that these have started."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *_children(child)]
    return found


def classes_file(options: CheckOptions) -> str:
    """A file with the names of the classes."""
    listed = options.folder / "classes.txt"
    listed.write_text("".join(f"{name}\n" for name in CLASSES))
    return str(listed)


def ramen_server(
    options: CheckOptions, *, module: str = "ramen", **settings: str | int | float | bool | None
) -> ServerProcess:
    """``ramen serve`` in a process of its own.

    Args:
        options: The model, and where it computes.
        module: Which to run; a wrapper of the command line may change it first.
        settings: Further options of the command, with ``_`` in place of ``-``; True for a flag.
    """
    port = free_port()
    chosen: dict[str, str | int | float | bool | None] = {
        "model": options.model,
        "classes_file": classes_file(options),
        "device": options.device,
        "dtype": options.dtype,
        "port": port,
        "max_batch": options.max_batch,
        "no_auth": True,
        "workers": options.workers,
        **settings,
    }
    command = [sys.executable, "-m", module, "serve"]
    for name, value in chosen.items():
        if value is not None and value is not False:
            command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return ServerProcess(command, port, options.folder / f"server-{port}.log")


@contextmanager
def sampled(look: Callable[[], float], pause: float = 0.1) -> Iterator[list[float]]:
    """A list to which a thread adds what it sees, until the block ends; an OSError is passed over."""
    values: list[float] = []
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause):
            with suppress(OSError):
                values.append(look())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield values
    finally:
        ended.set()
        thread.join()
