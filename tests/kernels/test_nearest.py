"""The Triton program that finds the nearest entries equals plain torch."""

import pytest
import torch
import torch.nn.functional as F

from ramen.kernels import nearest


@pytest.mark.interpreted
@pytest.mark.parametrize("topk", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_program_equals_torch(dtype: torch.dtype, topk: int) -> None:
    generator = torch.Generator().manual_seed(0)
    embeddings = F.normalize(torch.randn(33, 24, generator=generator), dim=1).to(dtype)
    queries = F.normalize(torch.randn(4, 24, generator=generator), dim=1)
    table = torch.full((3, 10), -1)  # a full queue, one with three entries, an empty one
    table[0], table[1, :3] = torch.arange(1, 11), torch.tensor([20, 30, 11])
    expected = nearest.nearest(queries, embeddings, 33, table, topk)
    rounded = queries.half().float()
    parts = torch.cat([rounded, (queries - rounded) * nearest.REMAINDER_SCALE]) @ embeddings.float().T
    for products in (nearest._products(queries, embeddings), parts):
        found = nearest._nearest_triton(queries, embeddings, products, table, topk)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two)
