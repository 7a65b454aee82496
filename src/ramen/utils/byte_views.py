"""The bytes of tensors viewed as fewer, wider integers, for code that only moves them."""

import torch
from torch import Tensor

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)  # the widest first


def as_wide_integers(*tensors: Tensor, run: int = 0, widest: torch.dtype = torch.int64) -> list[Tensor]:
    """The same bytes as the widest integers that divide every row, and at which every row begins.

    Args:
        tensors: With elements of one size; those of a row, the last dimension, are contiguous.
        run: A number of elements that must also become whole integers.
        widest: The widest integer to try.

    >>> one, two = torch.zeros(2, 8, dtype=torch.float16), torch.zeros(3, 6, dtype=torch.float16)
    >>> as_wide_integers(one, two)[0].shape
    torch.Size([2, 4])
    """
    lengths = [n for t in tensors for n in (t.shape[-1], t.storage_offset(), *t.stride()[:-1])]
    sizes = [n * tensors[0].element_size() for n in (run, *lengths)]
    candidates = _INTEGERS[_INTEGERS.index(widest) :]
    integer = next(dtype for dtype in candidates if all(size % dtype.itemsize == 0 for size in sizes))
    return [tensor.view(integer) for tensor in tensors]
