"""The attention's Triton programs equal plain torch: interpreted, and compiled on a GPU."""

import pytest
import torch

from ramen.kernels import attention

# tokens, heads, their width: less than a tile of tokens, exactly one, several and a rest, several and no rest
SHAPES = [(5, 2, 16), (64, 1, 32), (77, 3, 16), (128, 1, 16)]

# what the programs compute for the infinite image, numpy may mention
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.interpreted
@pytest.mark.parametrize(("tokens", "heads", "head_width"), SHAPES)
def test_programs_equal_torch(tokens: int, heads: int, head_width: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    qkv = torch.randn(2, tokens, 3 * heads * head_width, generator=generator)
    gradient = torch.randn(2, tokens, heads * head_width, generator=generator)
    plain = attention.forward((qkv.clone(),), heads, keep=True)
    fused = attention._forward_triton((qkv,), heads)
    torch.testing.assert_close(fused.output, plain.output.detach(), rtol=0, atol=1e-6)
    (expected,) = attention.backward(gradient, plain, heads)
    (found,) = attention.backward(gradient, fused, heads)
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-6)

    qkv[1, 0] = torch.inf  # an image that overflows affects no other
    overflown = attention._forward_triton((qkv,), heads)
    assert torch.equal(overflown.output[0], fused.output[0])
    assert torch.equal(attention.backward(gradient, overflown, heads)[0][0], found[0])


@pytest.mark.interpreted
@pytest.mark.parametrize(("tokens", "heads", "head_width"), SHAPES)
def test_programs_for_a_single_query_equal_torch(tokens: int, heads: int, head_width: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    width = heads * head_width
    inputs = tuple(torch.randn(2, *shape, generator=generator) for shape in ((1, width), (tokens, 2 * width)))
    gradient = torch.randn(2, 1, width, generator=generator)
    plain = attention.forward(tuple(tensor.clone() for tensor in inputs), heads, keep=True)
    fused = attention._forward_triton_single_query(inputs, heads)
    torch.testing.assert_close(fused.output, plain.output.detach(), rtol=0, atol=1e-6)
    found = attention.backward(gradient, fused, heads)
    torch.testing.assert_close(found, attention.backward(gradient, plain, heads), rtol=0, atol=3e-6)

    inputs[1][1, 0] = torch.inf
    overflown = attention._forward_triton_single_query(inputs, heads)
    assert torch.equal(overflown.output[0], fused.output[0])
    for now, before in zip(attention.backward(gradient, overflown, heads), found, strict=True):
        assert torch.equal(now[0], before[0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_width", [16, 64, 128])
@pytest.mark.parametrize("tokens", [5, 50, 197, 256, 257])
def test_attention_on_a_gpu(tokens: int, head_width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    heads = 3
    qkv = torch.randn(4, tokens, 3 * heads * head_width, generator=generator).cuda().to(dtype)
    gradient = torch.randn(4, tokens, heads * head_width, generator=generator).cuda().to(dtype)
    fused = attention.forward((qkv,), heads, keep=True)
    assert fused.lse is not None
    exact = attention.forward((qkv.float(),), heads, keep=True)
    assert exact.lse is None
    unit = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(fused.output.float(), exact.output.detach(), rtol=unit, atol=unit)
    (found,), (expected,) = (
        attention.backward(g, saved, heads) for g, saved in ((gradient, fused), (gradient.float(), exact))
    )
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=float(unit * expected.abs().max()))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("tokens", "head_width", "uses_triton"),
    [(5, 16, True), (50, 64, True), (197, 64, True), (257, 64, True), (257, 128, False), (577, 64, False)],
)
def test_attention_of_a_single_query_on_a_gpu(
    tokens: int, head_width: int, uses_triton: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    heads = 3
    width = heads * head_width
    query = torch.randn(4, 1, width, generator=generator).cuda().to(dtype)
    others = torch.randn(4, tokens, 2 * width, generator=generator).cuda().to(dtype)
    gradient = torch.randn(4, 1, width, generator=generator).cuda().to(dtype)
    fused = attention.forward((query, others), heads, keep=True)
    assert fused.output.requires_grad != uses_triton
    exact = attention.forward((query.detach().float(), others.detach().float()), heads, keep=True)
    unit = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(fused.output.float(), exact.output, rtol=unit, atol=unit)
    results = attention.backward(gradient, fused, heads), attention.backward(gradient.float(), exact, heads)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=float(unit * expected.abs().max()))
