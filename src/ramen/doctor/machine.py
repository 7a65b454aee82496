"""The machine: devices, threads, memory, disk."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ramen.doctor.findings import Finding

_GIB = 2**30
LITTLE_MEMORY, LITTLE_DISK = 2 * _GIB, 5 * _GIB
_NVIDIA = Path("/proc/driver/nvidia/version")
THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def devices() -> Iterator[Finding]:
    """The CUDA devices that torch sees."""
    import torch

    from ramen.utils.byte_sizes import readable_bytes

    count = torch.cuda.device_count()
    for index in range(count):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        text = f"{name}, {readable_bytes(free)} of {readable_bytes(total)} free"
        yield Finding(f"cuda:{index}", "ok", text)
    if count:
        return
    if _NVIDIA.exists():
        yield Finding(
            "cuda",
            "warning",
            f"there is an NVIDIA driver, but torch {torch.__version__} sees no device",
            "install a CUDA build of torch that supports the driver, and check CUDA_VISIBLE_DEVICES",
        )
    else:
        yield Finding("cuda", "ok", "no device; everything runs on the CPU")


def threads() -> Iterator[Finding]:
    """Whether torch uses more threads than there are cores: small models then run many times slower."""
    import torch

    cores, count = available_cores(), torch.get_num_threads()
    text = f"{count} threads on {cores} cores"
    settings = {name: os.environ[name] for name in THREAD_SETTINGS if name in os.environ}
    if settings:
        text += f" ({', '.join(f'{name}={value}' for name, value in settings.items())})"
    too_many = [name for name, value in settings.items() if value.isdigit() and int(value) > cores]
    if count > cores or too_many:
        advice = f"more threads than cores are slow: set OMP_NUM_THREADS={cores}"
        yield Finding("threads", "warning", text, advice)
    else:
        yield Finding("threads", "ok", text)


def available_cores() -> int:
    """The cores that this process may use: its affinity, limited by the CPU quota of its control group."""
    from ramen.data.make.worker_processes import available_cores as cores_by_affinity

    cores = cores_by_affinity()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such controller, or "max"
        return cores


def memory() -> Iterator[Finding]:
    """How much of the host's memory is free."""
    import torch

    from ramen.utils.byte_sizes import readable_bytes
    from ramen.utils.devices import free_bytes

    free = free_bytes(torch.device("cpu"))
    if free is None:
        yield Finding("memory", "ok", "the system does not report how much is free")
    elif free < LITTLE_MEMORY:
        advice = "a large model or memory may not fit: close other programs, lower capacity"
        yield Finding("memory", "warning", f"{readable_bytes(free)} free", advice)
    else:
        yield Finding("memory", "ok", f"{readable_bytes(free)} free")


def disk() -> Iterator[Finding]:
    """How much disk space is free in the current folder, where results are written by default."""
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free
    text = f"{free / _GIB:.2f} GiB free in {folder}"
    if not os.access(folder, os.W_OK):
        yield Finding("disk", "warning", f"{folder} cannot be written to", "give a writable folder as --out")
    elif free < LITTLE_DISK:
        yield Finding("disk", "warning", text, "data sets and model weights may not fit")
    else:
        yield Finding("disk", "ok", text)
