"""Triton kernels, each beside the plain torch function that it must equal."""

from functools import cache

import torch


@cache
def usable_on(device: torch.device) -> bool:
    """Whether Triton can compile for this device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (7, 0):
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
