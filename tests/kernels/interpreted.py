"""Run by ``test_interpreted.py`` with Triton's interpreter: every program beside its plain torch function."""

import torch
import torch.nn.functional as F

from ramen.kernels import activation, attention, nearest, norm
from ramen.utils import split_precision


def check_norm(dtype: torch.dtype, shared: bool, with_delta: str, width: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    images, tokens, size = 3, 11, 2 * width + 30
    x = random(images, tokens + 2, width).to(dtype)[:, :tokens]  # images lie apart
    delta = {"none": None, "own": random(images, tokens, width), "shared": random(tokens, width)}[with_delta]
    delta = None if delta is None else delta.to(dtype)
    affine = random(size) if shared else random(images, size)
    for place in (norm.Place(7, 7 + width, width, 1e-5), norm.Place(7, None, width, 1e-5)):
        for shift in (random(width), None):
            one = norm._forward_torch(x, delta, affine, place, shift)
            two = norm._forward_triton(x, delta, affine, place, shift)
            for name in ("total", "output", "mean", "scale"):
                torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=1e-3, atol=1e-5)
        gradient = random(images, tokens, width).to(dtype)
        skip = None if delta is None else random(images, tokens, width).to(dtype)
        rows = [torch.full((images, chunks, size), torch.nan) for chunks in (1, norm._chunks(images))]
        totals = [
            norm._backward_torch(gradient, one, affine, place, skip, rows[0]),
            norm._backward_triton(gradient, two, affine, place, skip, rows[1]),
        ]
        torch.testing.assert_close(*totals, rtol=1e-3, atol=1e-4)
        one_sum, two_sum = (table.sum(1) for table in rows)
        torch.testing.assert_close(one_sum, two_sum, rtol=1e-4, atol=1e-4, equal_nan=True)
        written = width if place.bias is None else 2 * width  # and not a number beside it
        assert torch.equal(two_sum.isfinite().nonzero()[:, 1].unique(), 7 + torch.arange(written))
        assert two_sum[:, 7 : 7 + written].abs().max() > 1


def check_activation(kind: str) -> None:
    x = torch.linspace(-8, 8, 5001)
    gradient = torch.randn(5001, generator=torch.Generator().manual_seed(0))
    plain = activation.forward(x, kind), activation.backward(gradient.clone(), x, kind)
    activation._fused = lambda x: True
    fused = activation.forward(x, kind), activation.backward(gradient.clone(), x, kind)
    activation._fused = lambda x: False
    torch.testing.assert_close(fused, plain, rtol=0, atol=1e-5)


def check_attention(tokens: int, heads: int, head_width: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    qkv = torch.randn(2, tokens, 3 * heads * head_width, generator=generator)
    gradient = torch.randn(2, tokens, heads * head_width, generator=generator)
    plain = attention.forward((qkv.clone(),), heads, keep=True)
    fused = attention._forward_triton((qkv,), heads)
    torch.testing.assert_close(fused.output, plain.output.detach(), rtol=0, atol=1e-6)
    (expected,) = attention.backward(gradient, plain, heads)
    (found,) = attention.backward(gradient, fused, heads)
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-6)

    qkv[1, 0] = torch.inf  # an image that overflows spoils nothing but itself
    spoilt = attention._forward_triton((qkv,), heads)
    assert torch.equal(spoilt.output[0], fused.output[0])
    assert torch.equal(attention.backward(gradient, spoilt, heads)[0][0], found[0])


def check_single_query(tokens: int, heads: int, head_width: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    width = heads * head_width
    inputs = tuple(torch.randn(2, *shape, generator=generator) for shape in ((1, width), (tokens, 2 * width)))
    gradient = torch.randn(2, 1, width, generator=generator)
    plain = attention.forward(tuple(tensor.clone() for tensor in inputs), heads, keep=True)
    fused = attention._forward_single(inputs, heads)
    torch.testing.assert_close(fused.output, plain.output.detach(), rtol=0, atol=1e-6)
    found = attention.backward(gradient, fused, heads)
    torch.testing.assert_close(found, attention.backward(gradient, plain, heads), rtol=0, atol=3e-6)

    inputs[1][1, 0] = torch.inf
    spoilt = attention._forward_single(inputs, heads)
    assert torch.equal(spoilt.output[0], fused.output[0])
    for now, before in zip(attention.backward(gradient, spoilt, heads), found, strict=True):
        assert torch.equal(now[0], before[0])


def check_nearest(topk: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    embeddings = F.normalize(torch.randn(33, 24, generator=generator), dim=1).to(dtype)
    queries = F.normalize(torch.randn(4, 24, generator=generator), dim=1)
    table = torch.full((3, 10), -1)  # a full queue, one with three entries, an empty one
    table[0], table[1, :3] = torch.arange(1, 11), torch.tensor([20, 30, 11])
    expected = nearest.nearest(queries, embeddings, 33, table, topk)
    rounded = queries.half().float()
    parts = torch.cat([rounded, (queries - rounded) * split_precision.REST_SCALE]) @ embeddings.float().T
    for products in (nearest._products(queries, embeddings), parts):
        found = nearest._nearest_triton(queries, embeddings, products, table, topk)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two)


def main() -> None:
    for dtype in (torch.float32, torch.float16):
        for shared in (False, True):
            for with_delta in ("none", "own", "shared"):
                check_norm(dtype, shared, with_delta, width=48)
        for topk in (1, 5):
            check_nearest(topk, dtype)
    check_norm(torch.float32, shared=False, with_delta="own", width=64)
    for kind in activation.KINDS:
        check_activation(kind)
    # fewer than a tile, exactly one, several and a rest, several and no rest
    for tokens, heads, head_width in ((5, 2, 16), (64, 1, 32), (77, 3, 16), (128, 1, 16)):
        check_attention(tokens, heads, head_width)
        check_single_query(tokens, heads, head_width)


if __name__ == "__main__":
    main()
