"""Memory that processes share, pinned so that a GPU takes images from it by itself.

From memory that is not pinned, the driver first copies images to some that is: 100 photographs of 56 MB take
8 ms, in which the thread that feeds the GPU waits.
"""

import contextlib
import logging
import weakref

import torch

from ramen.serve.shared_memory import SharedRegion

_log = logging.getLogger("ramen")


def pinned_region(size: int, device: torch.device) -> SharedRegion | None:
    """A region of pinned memory, all of which is taken at once; None if the system does not allow it.

    That is logged, and nothing depends on it: from other regions copies take longer.

    Args:
        size: In bytes.
        device: The GPU that takes images from it.
    """
    region = SharedRegion(size)
    runtime = torch.cuda.cudart()
    with torch.cuda.device(device):
        error = runtime.cudaHostRegister(region.address, size, 0)
    if int(error):
        reason = runtime.cudaGetErrorString(error)
        _log.warning("%d bytes for images could not be pinned, so that copies take longer: %s", size, reason)
        _forget_error(device)
        return None
    # not needed when the process ends; before that, another region may get the same address
    weakref.finalize(region, _unpin, region.address, device).atexit = False
    return region


def _unpin(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # it may still be read
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)


def _forget_error(device: torch.device) -> None:
    """CUDA reports an error once more, at the next kernel: better at one that nobody needs."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)
