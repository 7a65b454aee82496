"""Weighted sums of stored rows: the Triton programs, interpreted and compiled, and plain torch."""

import pytest
import torch
from torch import Tensor

from ramen.kernels import pinned_memory
from ramen.memory import codecs, row_sums
from ramen.memory.row_sums import weighted_sums
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
    check_sums_from_host(name, shape, None, "cpu")


# -- interpreted --------------------------------------------------------------------------------------


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


@pytest.mark.interpreted
@pytest.mark.usefixtures("triton_on_the_cpu")
@each_codec
def test_sums_from_host_memory(name: str) -> None:
    check_sums_from_host(name, UNEVEN, None, "cpu")


# -- on a GPU -----------------------------------------------------------------------------------------


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
@each_codec
def test_sums_from_host_memory_on_a_gpu(name: str) -> None:
    host = pinned_memory.shared_zeros((2**20,), torch.uint8, torch.device("cuda"))
    assert host.is_pinned()
    for shape in SHAPES:
        check_sums_from_host(name, shape, host, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["cuda", "host"])
@pytest.mark.parametrize("name", ["fp16", "int4", "sign"])
def test_sums_in_a_cuda_graph(name: str, place: str) -> None:
    generator = torch.Generator().manual_seed(0)
    codec = codecs.create(name, 3000, [1500, 1500])
    stored, scales = random_rows(codec, 50, generator, exact=True)
    if place == "host":
        stored = pinned_memory.shared_zeros(stored.shape, stored.dtype, torch.device("cuda")).copy_(stored)
    rows, weights = picks(4, 8, 50, generator, exact=True)
    arguments = [t.cuda() for t in (scales, rows, weights)]
    stored = stored if place == "host" else stored.cuda()
    weighted = lambda: weighted_sums(codec, stored, *arguments, way="kernel")  # noqa: E731
    weighted()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = weighted()
    for _ in range(2):
        rows, weights = picks(4, 8, 50, generator, exact=True)
        arguments[1].copy_(rows)
        arguments[2].copy_(weights)
        graph.replay()
        expected = looped(codec, stored.cpu(), scales, rows, weights)
        assert torch.equal(captured.cpu().double(), expected)


# -- the checks ---------------------------------------------------------------------------------------


def check_sums(name: str, shape: tuple, exact: bool, device: str, picked: int = 7) -> None:
    generator = torch.Generator().manual_seed(len(name) + shape[0])
    codec = codecs.create(name, *shape)
    stored, scales = random_rows(codec, 30, generator, exact)
    rows, weights = picks(3, picked, 30, generator, exact)
    arguments = [tensor.to(device) for tensor in (stored, scales, rows, weights)]
    ways = ["kernel", "gathered", *(["dense"] if device != "cpu" and "fp" in name else [])]
    results = [weighted_sums(codec, *arguments, way=way).cpu() for way in ways]
    expected = looped(codec, stored, scales, rows, weights)
    for result in results:
        assert result.dtype == torch.float32
        if exact:
            assert torch.equal(result.double(), expected)
        else:
            torch.testing.assert_close(result.double(), expected, rtol=0, atol=2e-6 * expected.abs().max())


def check_sums_from_host(name: str, shape: tuple, host: Tensor | None, device: str) -> None:
    """``host``: bytes of host memory that the GPU reaches; None on the CPU."""
    generator = torch.Generator().manual_seed(1)
    codec = codecs.create(name, *shape)
    stored, scales = random_rows(codec, 30, generator, exact=True)
    rows, weights = picks(3, 7, 30, generator, exact=True)
    if host is not None:
        room = host[: stored.numel() * stored.element_size()].view(stored.dtype).view(stored.shape)
        stored = room.copy_(stored)
    out = torch.full((3, codec.size), torch.nan, device=device)
    there = [tensor.to(device) for tensor in (scales, rows, weights)]
    folded = codec.fold(there[2], there[0], there[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sums, "_STAGING_BYTES", 21 * codec.width * codec.dtype.itemsize // 3)
        row_sums._sum_from_host(codec, stored, *there[:2], folded, out, None)
    assert torch.equal(out.cpu().double(), looped(codec, stored, scales, rows, weights))


def test_packed_rows_have_no_dense_product() -> None:
    codec = codecs.create("sign", 40)
    stored, scales = codec.encode(torch.ones(2, 40))
    rows, weights = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1)
    with pytest.raises(ValueError, match="way must not be 'dense' for codec 'sign'"):
        weighted_sums(codec, stored, scales, rows, weights, way="dense")
    with pytest.raises(ValueError, match="way must be one of 'dense', 'kernel', 'gathered', got 'fast'"):
        weighted_sums(codec, stored, scales, rows, weights, way="fast")
