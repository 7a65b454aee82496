"""Weighted sums of stored rows: the Triton programs, interpreted and compiled, and plain torch."""

import pytest
import torch

from ramen.memory import codecs
from ramen.memory.retrieval import weighted_sums
from tests.kernels.stored_rows import looped, picks, random_rows

# length of a gradient, its blocks: short, exactly whole units, uneven and padded, several programs wide
SHAPES = [(3, None), (64, [32, 32]), (300, [70, 1, 129, 100]), (4300, [2060, 40, 2200])]
UNEVEN, WIDE = SHAPES[2:]
CLIP = (39_936, [768] * 52)

each_codec = pytest.mark.parametrize("name", codecs.CODECS)
each_shape = pytest.mark.parametrize("shape", SHAPES[:3], ids=lambda shape: shape[0])


@each_shape
@each_codec
def test_plain_torch(name: str, shape: tuple) -> None:
    for exact in (True, False):
        check_sums(name, shape, exact, "cpu")


@pytest.mark.interpreted
@pytest.mark.usefixtures("triton_on_the_cpu")
@each_shape
@each_codec
def test_sums_without_rounding(name: str, shape: tuple) -> None:
    check_sums(name, shape, True, "cpu")


@pytest.mark.interpreted
@pytest.mark.usefixtures("triton_on_the_cpu")
@each_codec
def test_sums_with_rounding(name: str) -> None:
    check_sums(name, UNEVEN, False, "cpu")


@pytest.mark.interpreted
@pytest.mark.usefixtures("triton_on_the_cpu")
@each_codec
def test_picks_split_among_several_programs(name: str) -> None:
    check_sums(name, UNEVEN, True, "cpu", picked=75)


@pytest.mark.interpreted
@pytest.mark.usefixtures("triton_on_the_cpu")
def test_rows_several_programs_wide() -> None:
    check_sums("sign", WIDE, True, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shape", [*SHAPES, CLIP], ids=lambda shape: shape[0])
@each_codec
def test_sums_on_a_gpu(name: str, shape: tuple, exact: bool) -> None:
    check_sums(name, shape, exact, "cuda")


@pytest.mark.gpu
@each_codec
def test_sums_of_many_rows_on_a_gpu(name: str) -> None:
    for picked in (75, 500):
        check_sums(name, CLIP, True, "cuda", picked)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fp16", "sign"])
def test_sums_in_a_cuda_graph(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    codec = codecs.create(name, 3000, [1500, 1500])
    stored, scales = random_rows(codec, 50, generator, exact=True)
    rows, weights = picks(4, 8, 50, generator, exact=True)
    arguments = [t.cuda() for t in (stored, scales, rows, weights)]
    weighted_sums(codec, *arguments)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = weighted_sums(codec, *arguments)
    for _ in range(2):
        rows, weights = picks(4, 8, 50, generator, exact=True)
        arguments[2].copy_(rows)
        arguments[3].copy_(weights)
        graph.replay()
        assert torch.equal(captured.cpu().double(), looped(codec, stored, scales, rows, weights))


def check_sums(name: str, shape: tuple, exact: bool, device: str, picked: int = 7) -> None:
    generator = torch.Generator().manual_seed(len(name) + shape[0])
    codec = codecs.create(name, *shape)
    stored, scales = random_rows(codec, 30, generator, exact)
    rows, weights = picks(3, picked, 30, generator, exact)
    result = weighted_sums(codec, *(tensor.to(device) for tensor in (stored, scales, rows, weights))).cpu()
    expected = looped(codec, stored, scales, rows, weights)
    assert result.dtype == torch.float32
    if exact:
        assert torch.equal(result.double(), expected)
    else:
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=2e-6 * expected.abs().max())
