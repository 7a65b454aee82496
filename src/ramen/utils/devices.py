"""Devices, element types and how much memory is free."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ramen.utils import checks

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@contextmanager
def plain_numerics() -> Iterator[None]:
    """Compute as written, whatever the caller has switched on around it; also a decorator.

    Autocast would change the types. What is created in inference mode can neither be written to later nor
    take part in a backward pass.
    """
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


def parse_device(device: str | torch.device) -> torch.device:
    """The device of that name, if this machine has it."""
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device must name a torch device such as 'cpu' or 'cuda', got {device!r}"
        ) from error
    if parsed.type == "cuda":
        count = torch.cuda.device_count()
        if (parsed.index or 0) >= count:
            raise ValueError(f"device {device!r} was asked for, but torch sees {count} CUDA devices here")
    return parsed


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The floating-point type of that name."""
    if isinstance(dtype, torch.dtype):
        if dtype not in _DTYPES.values():
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype}")
        return dtype
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    return _DTYPES[dtype]


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``, without waiting for what the device is doing.

    It goes through page-locked memory of its own, so the caller may write to ``tensor`` at once.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        locked = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        return locked.copy_(tensor).to(device, non_blocking=True)
    return tensor.to(device)


def finite_or_zero(tensor: Tensor) -> Tensor:
    """Zeros in place of what is not finite.

    >>> finite_or_zero(torch.tensor([1.0, torch.inf, -torch.inf, torch.nan])).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    return torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)


def finite_rows(tensor: Tensor) -> Tensor:
    """For each row whether all its numbers are finite, with fewer kernels than ``torch.isfinite`` starts.

    >>> finite_rows(torch.tensor([[1.0, -3e38], [torch.inf, 0.0], [0.0, torch.nan]])).tolist()
    [True, False, False]
    """
    largest: Tensor = torch.linalg.vector_norm(tensor.flatten(1), torch.inf, dim=1)
    return largest < torch.inf


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on ``device``; None where the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    if device.type != "cpu":
        return None
    available = _meminfo_available()
    container = _container_available()
    known = [value for value in (available, container) if value is not None]
    return min(known) if known else None


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _container_available() -> int | None:
    """What a control group leaves; reclaimable file pages count as free."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such controller, or "max"
        return None
    return limit - used + int(stat.get("inactive_file", 0))


_UNITS = {"B": 1} | {
    prefix + infix + "B": base**power
    for power, prefix in enumerate("KMGT", 1)
    for infix, base in (("i", 1024), ("", 1000))
}


def parse_bytes(argument: str, value: object) -> int:
    """A positive number of bytes, given as such or with a unit.

    >>> parse_bytes("memory_budget", "1.5 GiB"), parse_bytes("memory_budget", 100)
    (1610612736, 100)
    """
    if not isinstance(value, str):
        return checks.integer(argument, value, 1)
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", value)
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    size = units.get((match[2] or "B").lower()) if match else None
    if match is None or size is None or float(match[1]) * size < 1:
        raise ValueError(
            f"{argument} must be a number of bytes or text such as '2 GiB' (units: {', '.join(_UNITS)}), "
            f"got {value!r}"
        )
    return int(float(match[1]) * size)


def readable_bytes(count: int) -> str:
    """``count`` with a binary unit: 6067200000 gives '5.65 GiB'."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
