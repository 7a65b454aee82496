"""Triton kernels, for GPUs. The plain torch that each must equal is named beside it.

Nothing here waits for the device, and everything can be captured in a CUDA graph. The modules import Triton;
``available`` says whether they can be imported.
"""

import contextlib
import importlib
import importlib.util
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}  # of every launch


@cache
def available() -> bool:
    """Whether Triton is installed; torch brings it on Linux."""
    return importlib.util.find_spec("triton") is not None


def on(device: torch.device) -> AbstractContextManager[object]:
    """Launch on ``device``; on the CPU, where only Triton's interpreter runs, there is nothing to choose."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@cache
def usable_on(device: torch.device, least: tuple[int, int] = (7, 0)) -> bool:
    """Whether Triton can compile for this device, and the device is of the ``least`` generation or later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= least and available()


def power_of_two(size: int) -> int:
    """The smallest one that holds ``size``: tiles have such sides.

    >>> power_of_two(197), power_of_two(64)
    (256, 64)
    """
    return 1 << (size - 1).bit_length()


@cache
def load(name: str) -> Any:
    """The module of Triton programs of that name; imported here, as the CPU does without Triton."""
    return importlib.import_module(f"ramen.kernels.programs.{name}")
