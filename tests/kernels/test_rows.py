"""Rows written and copied: the Triton programs, interpreted and compiled, and plain torch."""

import pytest
import torch

from ramen.kernels import rows as row_kernels

TABLES = [(torch.uint8, 1300), (torch.int8, 7), (torch.float16, 66), (torch.float16, 33)]


@pytest.mark.interpreted
@pytest.mark.usefixtures("triton_on_the_cpu")
@pytest.mark.parametrize(("dtype", "width"), TABLES, ids=str)
def test_programs(dtype: torch.dtype, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_rows(dtype, width, "cpu", monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "width"), TABLES, ids=str)
def test_programs_on_a_gpu(dtype: torch.dtype, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_rows(dtype, width, "cuda", monkeypatch)


@pytest.mark.parametrize(("dtype", "width"), TABLES, ids=str)
def test_plain_torch(dtype: torch.dtype, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_rows(dtype, width, "cpu", monkeypatch)


def check_rows(dtype: torch.dtype, width: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_kernels, "_BACKGROUND_PROGRAMS", 2)  # each has several steps to do
    table = torch.zeros(70, width, dtype=dtype, device=device)
    values = torch.randint(-100, 100, (4, width)).to(dtype).to(device)
    rows = torch.tensor([40, 2, 69, 2], device=device)
    values[3] = values[1]
    row_kernels.write_rows(table, rows, values)
    expected = torch.zeros_like(table)
    expected[rows] = values
    assert torch.equal(table, expected)
    needed = torch.zeros(70, dtype=torch.int32, device=device)
    needed[rows] = 1
    target_rows = needed.cumsum(0) - 1
    for columns in (slice(0, width), slice(width // 2, width)):
        target = torch.empty(3, width - columns.start, dtype=dtype, device=device)
        for copy in (row_kernels.copy_rows, row_kernels.copy_rows_sparingly):
            copy(table[:, columns], needed, target_rows, target.fill_(7))
            assert torch.equal(target, expected[[2, 40, 69], columns])
