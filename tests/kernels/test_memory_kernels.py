"""The kernels equal the torch beside them: interpreted here, compiled on a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ramen import kernels
from ramen.kernels import attention, pinned_memory
from ramen.memory import codecs, row_sums
from tests.kernels import memory_kernel_checks as kernel_checks

needs_triton = pytest.mark.skipif(not kernels.available(), reason="Triton is not installed")


@needs_triton
def test_interpreted_kernels_equal_torch() -> None:
    """In a process of its own: Triton asks for the interpreter once, when it is imported."""
    script = Path(__file__).with_name("memory_kernel_checks.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shape", [*kernel_checks.SHAPES, (39_936, [768] * 52)], ids=lambda shape: shape[0])
@pytest.mark.parametrize("name", codecs.CODECS)
def test_sums(name: str, shape: tuple, exact: bool) -> None:
    kernel_checks.check_sums(name, shape, exact, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", codecs.CODECS)
def test_sums_of_many_rows(name: str) -> None:
    for picked in (75, 500):
        kernel_checks.check_sums(name, (39_936, [768] * 52), True, "cuda", picked)


@pytest.mark.gpu
@pytest.mark.parametrize("name", codecs.CODECS)
def test_sums_from_host_memory(name: str) -> None:
    host = pinned_memory.shared_zeros((2**20,), torch.uint8, torch.device("cuda"))
    assert host.is_pinned()
    for shape in kernel_checks.SHAPES:
        kernel_checks.check_sums_from_host(name, shape, host, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "width"), [(torch.uint8, 1300), (torch.int8, 7), (torch.float16, 33)])
def test_rows(dtype: torch.dtype, width: int) -> None:
    kernel_checks.check_rows(dtype, width, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["cuda", "host"])
@pytest.mark.parametrize("name", ["fp16", "int4", "sign"])
def test_sums_in_a_cuda_graph(name: str, place: str) -> None:
    generator = torch.Generator().manual_seed(0)
    codec = codecs.create(name, 3000, [1500, 1500])
    stored, scales = kernel_checks.random_rows(codec, 50, generator, exact=True)
    if place == "host":
        stored = pinned_memory.shared_zeros(stored.shape, stored.dtype, torch.device("cuda")).copy_(stored)
    rows, weights = kernel_checks.picks(4, 8, 50, generator, exact=True)
    arguments = [t.cuda() for t in (scales, rows, weights)]
    stored = stored if place == "host" else stored.cuda()
    weighted = lambda: row_sums.weighted_sums(codec, stored, *arguments, way="kernel")  # noqa: E731
    weighted()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = weighted()
    for _ in range(2):
        rows, weights = kernel_checks.picks(4, 8, 50, generator, exact=True)
        arguments[1].copy_(rows)
        arguments[2].copy_(weights)
        graph.replay()
        expected = kernel_checks.looped(codec, stored.cpu(), scales, rows, weights)
        assert torch.equal(captured.cpu().double(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_width", [16, 64, 128])
@pytest.mark.parametrize("tokens", [5, 50, 197, 256, 257])
def test_attention(tokens: int, head_width: int, dtype: torch.dtype) -> None:
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
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("tokens", "head_width", "ours"),
    [(5, 16, True), (50, 64, True), (197, 64, True), (257, 64, True), (257, 128, False), (577, 64, False)],
)
def test_attention_of_a_single_query(tokens: int, head_width: int, ours: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    heads = 3
    width = heads * head_width
    query = torch.randn(4, 1, width, generator=generator).cuda().to(dtype)
    others = torch.randn(4, tokens, 2 * width, generator=generator).cuda().to(dtype)
    gradient = torch.randn(4, 1, width, generator=generator).cuda().to(dtype)
    fused = attention.forward((query, others), heads, keep=True)
    assert fused.output.requires_grad != ours
    exact = attention.forward((query.detach().float(), others.detach().float()), heads, keep=True)
    unit = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(fused.output.float(), exact.output, rtol=unit, atol=unit)
    results = attention.backward(gradient, fused, heads), attention.backward(gradient.float(), exact, heads)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=float(unit * expected.abs().max()))


def test_packed_rows_have_no_dense_product() -> None:
    codec = codecs.create("sign", 40)
    stored, scales = codec.encode(torch.ones(2, 40))
    rows, weights = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1)
    with pytest.raises(ValueError, match="way must not be 'dense' for codec 'sign'"):
        row_sums.weighted_sums(codec, stored, scales, rows, weights, way="dense")
    with pytest.raises(ValueError, match="way must be one of 'dense', 'kernel', 'gathered', got 'fast'"):
        row_sums.weighted_sums(codec, stored, scales, rows, weights, way="fast")


# -- host memory --------------------------------------------------------------------------------------


class FakeRuntime:
    """Stands in for CUDA: writes down what is registered."""

    def __init__(self, error: int = 0) -> None:
        self.error, self.registered = error, {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self.registered[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.registered[address]
        return 0

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        return f"error {error}"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(pinned_memory, "_check_once", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: kernels.current_device(torch.device("cpu")))
    return fake


def test_host_memory_lives_as_long_as_its_views(runtime: FakeRuntime) -> None:
    table = pinned_memory.shared_zeros((30, 7), torch.float16, torch.device("cuda"))
    assert runtime.registered == {table.data_ptr(): 30 * 7 * 2}
    assert not table.any()
    view = table[3:5]
    view[0, 0] = 5
    assert table[3, 0] == 5
    del table
    assert len(runtime.registered) == 1
    assert view[0, 0] == 5
    del view
    assert not runtime.registered


def test_memory_that_cannot_be_locked(runtime: FakeRuntime) -> None:
    runtime.error = 2
    with pytest.raises(
        MemoryError, match=r"420 bytes .* could not be page-locked for cuda \(error 2\): lower"
    ):
        pinned_memory.shared_zeros((30, 7), torch.float16, torch.device("cuda"))
