"""Host memory that a GPU reads and writes by itself.

Tables too large for the GPU lie in page-locked host memory, which kernels reach over the bus: nobody copies
on the host, and nobody waits. The memory is mapped for this alone and registered with CUDA, so it is as large
as was asked for; torch's own pinned tensors are rounded up to powers of two.
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
    """A CPU tensor of zeros that kernels on ``device`` may use. It lives as long as any view of it.

    Raises:
        MemoryError: The system does not let so much memory be page-locked.
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
            f"{size} bytes of host memory could not be page-locked for {device} ({reason}): lower capacity, "
            "choose a smaller codec, or placement='cpu', which needs no page-locked memory"
        )
    # Runs when the last view is gone, just before the pages go; at the end of the process all goes anyway.
    weakref.finalize(pages, _release, address, device).atexit = False
    return tensor


def _release(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # a kernel may still be at work on it
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)


@cache
def _check_once(device: torch.device) -> None:
    """See a kernel write host memory and read it back, before anything is trusted to it."""
    values = torch.arange(1, 65, dtype=torch.int32, device=device).view(2, 32)
    order = torch.tensor([1, 0], device=device)
    table = _registered_zeros((2, 32), torch.int32, device)
    back = torch.zeros_like(values)
    rows.write_rows(table, order, values)
    rows.copy_rows(table, torch.ones_like(order), order, back)
    torch.cuda.synchronize(device)
    if not (torch.equal(table.flip(0), values.cpu()) and torch.equal(back, values)):
        raise RuntimeError(
            f"{device} does not see page-locked host memory as it should: use placement='encoder' or 'cpu'"
        )
