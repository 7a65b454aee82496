"""What a run costs: seconds by stage, peaks of memory."""

import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

STAGES = ("read", "preprocess", "predict", "zero_shot", "score")


class Stopwatch:
    """Seconds by stage; threads may use it at once, then stages that overlap in time all count in full."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            with self._lock:
                self.seconds[name] += spent

    def restore(self, seconds: Mapping[str, float]) -> None:
        """Go on from the seconds of an earlier part of the run."""
        self.seconds = {name: float(seconds[name]) for name in STAGES}


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """How long a call takes, until the device has finished it."""
    wait_for(device)
    start = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - start


class PeakMemory:
    """The highest use of memory since this was made.

    On the device it is what torch had allocated, weights included. On the host it is the resident memory of
    the whole process; where the system cannot begin to count anew, since the process started.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self.host_scope = "run" if _restart_host_peak() else "process"
        self._earlier_device: int | None = None
        self._earlier_host = 0

    def restore(self, device_bytes: int | None, host_bytes: int) -> None:
        """Take over the peaks of an earlier part of the run."""
        self._earlier_device, self._earlier_host = device_bytes, host_bytes

    def device_bytes(self) -> int | None:
        """None where torch does not count."""
        if self.device.type != "cuda":
            return None
        return max(torch.cuda.max_memory_allocated(self.device), self._earlier_device or 0)

    def host_bytes(self) -> int:
        """The peak of the process."""
        return max(_host_peak(), self._earlier_host)


def _restart_host_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak becomes the present use
    except OSError:
        return False
    return True


def _host_peak() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
