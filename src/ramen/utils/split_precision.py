"""Products with matrices in half precision that lose nothing of the other factor.

The factor is split into two numbers of the matrix's type whose sum it is. Both go through one product, which
sums in fp32.
"""

import torch
from torch import Tensor

REST_SCALE = 2.0**11  # what the rounding to half precision leaves is smaller by that much


def split_product(factor: Tensor, matrix: Tensor) -> Tensor:
    """``factor @ matrix`` in two parts, one below the other, ``(2 n, m)`` in fp32; ``join`` adds them up.

    Args:
        factor: ``(n, k)`` in fp32, of a size that half precision holds.
        matrix: ``(k, m)`` in half precision, on a GPU.
    """
    rounded = factor.to(matrix.dtype)
    rest = ((factor - rounded.float()) * REST_SCALE).to(matrix.dtype)
    product: Tensor = torch.mm(torch.cat([rounded, rest]), matrix, out_dtype=torch.float32)
    return product


def join(product: Tensor) -> Tensor:
    """The product ``(n, m)`` of its two parts."""
    first, rest = product.chunk(2)
    return first + rest / REST_SCALE
