"""Triton kernels for GPUs: in each file a plain torch function, and the programs that must equal it.

Triton is imported at the first launch, so that everything else works without it. No kernel waits for the
device, and all can be recorded in a CUDA graph.
"""

import contextlib
import importlib
import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from threading import Lock
from typing import Any

import torch

_LOADING = Lock()


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


def program(function: Callable[..., Any]) -> Any:
    """A Triton program, or a function that programs call: ``program[grid](...)`` launches it.

    The first launch of one of a file's programs loads Triton, whose language becomes the global name ``tl``
    of that file. Until then it is not needed: annotations have to be text.
    """
    return _Program(function)


class _Program:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        names = self.function.__globals__
        with _LOADING:
            if "tl" not in names:
                triton = importlib.import_module("triton")
                for name, value in list(names.items()):
                    if isinstance(value, _Program):
                        names[name] = triton.jit(value.function)
                names["tl"] = triton.language
        return names[self.function.__name__][grid]


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """A block that launches on ``device``; does nothing for the CPU, on which only the interpreter runs."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least ``size``: the sides of a tile must be one.

    >>> power_of_two(197), power_of_two(64)
    (256, 64)
    """
    return 1 << (size - 1).bit_length()
