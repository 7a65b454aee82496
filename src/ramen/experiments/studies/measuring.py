"""Time and memory of a piece of work."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_CLEAR_PEAK = "5"  # what the kernel takes as "forget the largest size so far"


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """How long a call takes, until the device has finished it."""
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Peak:
    """The most memory in use while something ran; None where the system does not say."""

    device: int | None = None  # allocated on the CUDA device, all that the process has there
    host: int | None = None  # of the process, all of it


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Note the largest use of memory while the block runs; it is there when the block has ended."""
    peak = Peak()
    fresh = _forget_host_peak()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    yield peak
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        peak.device = torch.cuda.max_memory_allocated(device)
    peak.host = _host_peak() if fresh else None


def _forget_host_peak() -> bool:
    """Whether the peak counts from here on: else it would be that of something earlier."""
    try:
        Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK)
    except OSError:
        return False
    return True


def _host_peak() -> int:
    if sys.platform.startswith("linux"):  # getrusage's figure there never falls
        lines = Path("/proc/self/status").read_text().splitlines()
        found = next((line for line in lines if line.startswith("VmHWM:")), None)
        if found is not None:
            return int(found.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
