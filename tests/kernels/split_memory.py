"""A memory whose gradients are in host memory that a GPU reaches, without a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from ramen.kernels import rows as row_kernels
from ramen.kernels import sums as sum_kernels
from ramen.memory import codecs, row_sums, row_table
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory


@contextmanager
def split_on_the_cpu() -> Iterator[pytest.MonkeyPatch]:
    """A block in which all memories keep their gradients as if a GPU reached them in host memory.

    Kernels write and read them, which only Triton's interpreter can do on a CPU.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_table.ColumnSpec, "shared", property(lambda column: column.used_from is not None))
        patch.setattr(row_table, "shared_zeros", lambda shape, dtype, device: torch.zeros(shape, dtype=dtype))
        patch.setattr(torch.cuda, "synchronize", lambda device: None)
        patch.setattr(row_kernels, "_uses_triton", lambda device: True)
        patch.setattr(sum_kernels, "_uses_triton", lambda device: True)
        patch.setattr(row_sums, "best_way", lambda *_: "kernel")
        patch.setattr(row_sums, "_by_kernel", _from_host)
        patch.setattr(row_sums, "_STAGING_BYTES", 20 * 300)
        yield patch


def _from_host(
    codec: codecs.Codec, stored: Tensor, scales: Tensor, rows: Tensor, weights: Tensor, *ahead: object
) -> Tensor:
    """On the CPU, where everything is on one device, treat all rows like those in host memory."""
    out = weights.new_full((len(rows), codec.size), torch.nan)
    row_sums._sum_from_host(codec, stored, scales, rows, weights, out, *ahead)
    return out


def memory_of(name: str) -> Memory:
    """A small memory with that codec."""
    return Memory(MemoryPlan(4, 5, 8, 300, codec=name, blocks=[70, 130, 100]))


def random_batches(count: int, seed: int = 0) -> Iterator[list[Tensor]]:
    """Queues, embeddings, gradients and entropies for such a memory."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield [
            torch.randint(4, (9,), generator=generator),
            *(torch.randn(9, width, generator=generator) for width in (8, 300)),
            torch.rand(9, generator=generator),
        ]
