"""What a run costs: seconds per stage, peak memory."""

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
    """Seconds per stage. Threads may share it; stages that overlap in time all count in full."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            with self._lock:
                self.seconds[name] += spent

    def restore(self, seconds: Mapping[str, float]) -> None:
        """Continue from the seconds of an earlier part of the run."""
        self.seconds = {name: float(seconds[name]) for name in STAGES}


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all of its work."""
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
    """The highest memory use since this object was created.

    On the device it is what torch had allocated, weights included. On the host it is the resident memory of
    the whole process; since the process started, if the system cannot reset its count.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self.host_scope = "run" if _restart_host_peak() else "process"
        self._earlier_device: int | None = None
        self._earlier_host = 0

    def restore(self, device_bytes: int | None, host_bytes: int) -> None:
        """Continue from the peaks of an earlier part of the run."""
        self._earlier_device, self._earlier_host = device_bytes, host_bytes

    def device_bytes(self) -> int | None:
        """The peak on the device; None if torch does not count it."""
        if self.device.type != "cuda":
            return None
        return max(torch.cuda.max_memory_allocated(self.device), self._earlier_device or 0)

    def host_bytes(self) -> int:
        """The peak of the process."""
        return max(_host_peak(), self._earlier_host)


def _restart_host_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the peak to the current use
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
