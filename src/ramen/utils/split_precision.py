"""Products with half-precision matrices that round neither factor.

The fp32 factor is split into two half-precision numbers whose sum it is: the rounded number, and the
remainder that rounding has left. Both go through one product, which is summed in fp32.
"""

import torch
from torch import Tensor

REMAINDER_SCALE = 2.0**11  # brings the remainder to about the size of the number


def product_in_parts(factor: Tensor, matrix: Tensor) -> Tensor:
    """``factor @ matrix`` in two parts, one below the other, ``(2 n, m)`` in fp32; ``sum_parts`` adds them.

    Args:
        factor: ``(n, k)`` in fp32, within the range of half precision.
        matrix: ``(k, m)`` in half precision, on a GPU.
    """
    rounded = factor.to(matrix.dtype)
    remainder = ((factor - rounded.float()) * REMAINDER_SCALE).to(matrix.dtype)
    product: Tensor = torch.mm(torch.cat([rounded, remainder]), matrix, out_dtype=torch.float32)
    return product


def sum_parts(product: Tensor) -> Tensor:
    """The product ``(n, m)``, given its two parts ``(2 n, m)``."""
    rounded, remainder = product.chunk(2)
    return rounded + remainder / REMAINDER_SCALE
