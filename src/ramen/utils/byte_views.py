"""Tensors as fewer, wider numbers, for what only moves them."""

import torch
from torch import Tensor

_WORDS = (torch.int64, torch.int32, torch.int16, torch.int8)  # the widest first


def in_words(*tensors: Tensor, run: int = 0, widest: torch.dtype = torch.int64) -> list[Tensor]:
    """The same bytes as the widest whole numbers that every row consists of and begins with.

    Args:
        tensors: Numbers of one size; those of a row, the last dimension, lie side by side.
        run: A number of them that must also become whole words.
        widest: The widest word to try.

    >>> in_words(torch.zeros(2, 8, dtype=torch.float16), torch.zeros(3, 6, dtype=torch.float16))[0].shape
    torch.Size([2, 4])
    """
    lengths = [n for t in tensors for n in (t.shape[-1], t.storage_offset(), *t.stride()[:-1])]
    sizes = [n * tensors[0].element_size() for n in (run, *lengths)]
    candidates = _WORDS[_WORDS.index(widest) :]
    word = next(word for word in candidates if all(size % word.itemsize == 0 for size in sizes))
    return [tensor.view(word) for tensor in tensors]
