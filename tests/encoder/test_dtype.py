"""The dtype that ``dtype="auto"`` chooses."""

import pytest
import torch
from open_clip.transformer import VisionTransformer
from torch import nn

from ramen.encoder.encoder import AffineEncoder
from ramen.utils.devices import bfloat16_unit


def transformer(width: int) -> nn.Module:
    return VisionTransformer(32, 16, width, layers=2, heads=4, mlp_ratio=4.0, output_dim=8)


def convolutions() -> nn.Module:
    wide = (nn.Conv2d(3, 1100, 1), nn.GroupNorm(10, 1100), nn.Conv2d(1100, 1100, 3))
    return nn.Sequential(*wide, nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize("make", [lambda: transformer(64), convolutions])
def test_no_bfloat16_where_it_is_no_faster(make) -> None:
    assert AffineEncoder(make(), dtype="auto").dtype == torch.float32


def test_a_large_transformer_is_in_bfloat16_if_the_cpu_computes_it() -> None:
    expected = torch.float32 if bfloat16_unit() is None else torch.bfloat16
    assert AffineEncoder(transformer(768), dtype="auto").dtype == expected


@pytest.mark.parametrize(
    ("flags", "unit"),
    [("fpu avx512_bf16", "AVX512-BF16"), ("amx_tile amx_bf16 avx512_bf16", "AMX"), ("avx512f", None)],
)
def test_units(flags, unit, tmp_path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    assert bfloat16_unit(tmp_path / "cpuinfo") == unit
    assert bfloat16_unit(tmp_path / "missing") is None
