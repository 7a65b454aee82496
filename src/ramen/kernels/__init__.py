"""Triton kernels for GPUs, each beside the plain torch function that it must equal.

A module here holds the functions that the rest of the package calls, their plain torch form and the code that
launches the Triton programs, which are in the module of the same name in ``ramen.kernels.programs``. Only
``load`` imports those, so that everything else works without Triton. No kernel waits for the device, and all
can be recorded in a CUDA graph.
"""

import contextlib
import importlib
import importlib.util
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

LAUNCH_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}  # of the programs that move and sum stored rows


@cache
def available() -> bool:
    """Whether Triton is installed; torch installs it on Linux."""
    return importlib.util.find_spec("triton") is not None


@cache
def usable_on(device: torch.device, minimum_capability: tuple[int, int] = (7, 0)) -> bool:
    """Whether Triton can compile for ``device``, a GPU of at least this CUDA compute capability."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < minimum_capability:
        return False
    return available()


@cache
def load(name: str) -> Any:
    """The module of Triton programs of that name."""
    return importlib.import_module(f"ramen.kernels.programs.{name}")


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """A block that launches on ``device``; does nothing for the CPU, on which only the interpreter runs."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least ``size``: the sides of a tile must be one.

    >>> power_of_two(197), power_of_two(64)
    (256, 64)
    """
    return 1 << (size - 1).bit_length()
