"""Pinned host memory that kernels on a GPU read and write directly.

Tables too large for the GPU are in pinned host memory, which kernels reach over the bus: the host copies
nothing and waits for nothing. The pages are mapped for one table and registered with CUDA, so they take no
more memory than the table; torch's own pinned tensors are rounded up to powers of two.
"""

import math
import mmap
import weakref
from functools import cache

import torch
from torch import Tensor

from ramen.kernels import rows


class _Pages(mmap.mmap):
    """Anonymous pages; a subclass, since a plain ``mmap`` takes no weak reference."""


def shared_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A CPU tensor of zeros that kernels on ``device`` can use. It lives as long as any view of it.

    Raises:
        MemoryError: The system does not allow to pin so much memory.
    """
    _check_once(device)
    return _registered_zeros(shape, dtype, device)


def _registered_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    size = math.prod(shape) * dtype.itemsize
    pages = _Pages(-1, size)
    tensor = torch.frombuffer(pages, dtype=dtype).view(shape)
    address = tensor.data_ptr()
    with torch.cuda.device(device):
        error = torch.cuda.cudart().cudaHostRegister(address, size, 0)
    if int(error):
        reason = torch.cuda.cudart().cudaGetErrorString(error)
        raise MemoryError(
            f"{size} bytes of host memory could not be pinned for {device} ({reason}): lower capacity, "
            "choose a smaller codec, or placement='cpu', which needs no pinned memory"
        )
    # Runs after the last view is gone and before the pages are; not needed when the process ends.
    weakref.finalize(pages, _release, address, device).atexit = False
    return tensor


def _release(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # a kernel may still use it
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)


@cache
def _check_once(device: torch.device) -> None:
    """Test that kernels write host memory and read it back, before any data depends on it."""
    values = torch.arange(1, 65, dtype=torch.int32, device=device).view(2, 32)
    order = torch.tensor([1, 0], device=device)
    table = _registered_zeros((2, 32), torch.int32, device)
    back = torch.zeros_like(values)
    rows.write_rows(table, order, values)
    rows.copy_rows(table, torch.ones_like(order), order, back)
    torch.cuda.synchronize(device)
    if not (torch.equal(table.flip(0), values.cpu()) and torch.equal(back, values)):
        raise RuntimeError(
            f"{device} does not read and write pinned host memory correctly: use placement='encoder' or 'cpu'"
        )
