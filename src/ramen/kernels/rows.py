"""Rows written to and copied from tables that may be in pinned host memory (``ramen.kernels.pinned_memory``).

A GPU reaches such a table with Triton programs; plain torch would copy through the host and wait.
"""

import torch
from torch import Tensor

from ramen import kernels
from ramen.utils.byte_views import as_wide_integers

_WIDTH = 1024  # numbers that one program moves
# For a copy in the background: this few programs, each with a tile in flight, saturate the bus and leave the
# rest of the GPU free.
_BACKGROUND_PROGRAMS = 16
_BACKGROUND_TILE = {"ROWS": 16, "WIDTH": 512}


def write_rows(target: Tensor, rows: Tensor, values: Tensor) -> None:
    """``target[rows] = values``. If row numbers repeat, their values must be equal."""
    if _uses_triton(rows.device):
        _write_triton(target, rows, values)
    else:
        target[rows.to(target.device)] = values.to(target.device)


def copy_rows(source: Tensor, needed: Tensor, target_rows: Tensor, target: Tensor) -> None:
    """``target[target_rows[needed]] = source[needed]``.

    Args:
        source: ``(R, width)``.
        needed: ``(R,)``, 0 for rows that are not copied.
        target_rows: ``(R,)``, the row of ``target`` that each row is copied to.
        target: As wide as ``source``, of the same dtype.
    """
    if _uses_triton(needed.device):
        _copy_triton(source, needed, target_rows, target)
    else:
        _copy_torch(source, needed, target_rows, target)


def copy_rows_sparingly(source: Tensor, needed: Tensor, target_rows: Tensor, target: Tensor) -> None:
    """``copy_rows`` by a few programs, for a copy in the background: most of the GPU stays free."""
    if _uses_triton(needed.device):
        _copy_triton_sparingly(source, needed, target_rows, target)
    else:
        _copy_torch(source, needed, target_rows, target)


def _uses_triton(device: torch.device) -> bool:
    return kernels.usable_on(device)


def _copy_torch(source: Tensor, needed: Tensor, target_rows: Tensor, target: Tensor) -> None:
    copied = needed.nonzero()[:, 0]
    target[target_rows[copied]] = source[copied.to(source.device)].to(target.device)


# -- Triton -----------------------------------------------------------------------------------------


def _write_triton(target: Tensor, rows: Tensor, values: Tensor) -> None:
    target, values = _as_integers(target, values)
    width = values.shape[1]
    with kernels.current_device(rows.device):
        kernels.load("rows").write_rows[_grid(len(rows), width)](
            values, rows, target, width, values.stride(0), target.stride(0),
            WIDTH=_WIDTH, **kernels.LAUNCH_OPTIONS,
        )  # fmt: skip


def _copy_triton(source: Tensor, needed: Tensor, target_rows: Tensor, target: Tensor) -> None:
    source, target = _as_integers(source, target)
    width = source.shape[1]
    with kernels.current_device(needed.device):
        kernels.load("rows").copy_rows[_grid(len(source), width)](
            source, needed, target_rows, target, width, source.stride(0), target.stride(0),
            WIDTH=_WIDTH, **kernels.LAUNCH_OPTIONS,
        )  # fmt: skip


def _copy_triton_sparingly(source: Tensor, needed: Tensor, target_rows: Tensor, target: Tensor) -> None:
    source, target = _as_integers(source, target)
    rows, width = source.shape
    with kernels.current_device(needed.device):
        kernels.load("rows").copy_rows_sparingly[(_BACKGROUND_PROGRAMS,)](
            source, needed, target_rows, target, rows, width, source.stride(0), target.stride(0),
            **_BACKGROUND_TILE, **kernels.LAUNCH_OPTIONS,
        )  # fmt: skip


def _grid(rows: int, width: int) -> tuple[int, int]:
    return rows, -(-width // _WIDTH)


def _as_integers(*tables: Tensor) -> list[Tensor]:
    return as_wide_integers(*tables, widest=torch.int32)  # the sizes above were chosen for 32 bits
