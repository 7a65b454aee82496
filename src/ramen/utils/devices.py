"""Devices, dtypes and free memory."""

import re
from pathlib import Path

import torch
from torch import Tensor

from ramen.utils.checks import DTYPES, check_dtype_name

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
_BFLOAT16_UNITS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}  # by the flag of the system


def parse_device(device: str | torch.device) -> torch.device:
    """Parse a device and check that this machine has it."""
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device must name a torch device such as 'cpu' or 'cuda', got {device!r}"
        ) from error
    if parsed.type == "cuda":
        count = torch.cuda.device_count()
        if (parsed.index or 0) >= count:
            raise ValueError(f"device {device!r} is not available: torch sees {count} CUDA devices")
    return parsed


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        if dtype not in _DTYPES.values():
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype}")
        return dtype
    return _DTYPES[check_dtype_name(dtype)]


def device_and_dtype_names(device: str | None, dtype: str | None) -> tuple[str, str]:
    """What experiments use: a GPU if there is one and nothing else is asked for, with float16 on it.

    >>> device_and_dtype_names("cpu", None)
    ('cpu', 'float32')
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return device, dtype or ("float16" if device.startswith("cuda") else "float32")


def bfloat16_unit(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """What computes bfloat16 on this machine's CPU; None if nothing does, or the system does not say."""
    try:
        flags = set(re.findall(r"\w+", cpuinfo.read_text()))
    except OSError:
        return None
    return next((name for flag, name in _BFLOAT16_UNITS.items() if flag in flags), None)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy ``tensor`` to ``device`` without waiting for the device.

    The copy goes through its own pinned memory, so the caller may write to ``tensor`` immediately.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        return pinned.copy_(tensor).to(device, non_blocking=True)
    return tensor.to(device)


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on ``device``; None if the system does not say."""
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
    """What the limit of a control group leaves; reclaimable file pages count as free."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such controller, or no limit ("max")
        return None
    return limit - used + int(stat.get("inactive_file", 0))
