"""The accuracy benchmark on files in its formats."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import load_benchmark
from open_clip.transformer import VisionTransformer
from safetensors.torch import save_file

CLASSES = ["cat", "dog", "fire_truck"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    architecture = {
        "image_size": 32,
        "patch_size": 8,
        "width": 16,
        "layers": 1,
        "heads": 2,
        "mlp_ratio": 2.0,
        "output_dim": 8,
    }
    torch.manual_seed(0)
    save_file(VisionTransformer(**architecture).half().state_dict(), tmp_path / "vision.safetensors")
    save_file({"pets": torch.randn(3, 8, 8)}, tmp_path / "text_features.safetensors")
    config = {
        "architecture": architecture,
        "logit_scale": 20.0,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "pets": {"classes": CLASSES},
        "templates": [f"template {i} {{}}." for i in range(7)] + ["a photo of a {}."],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    pixels = {
        name: rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8) for name in ("clean", "fog", "snow")
    }
    np.savez(tmp_path / "stream.npz", labels=rng.integers(0, 3, 20), **pixels)
    return tmp_path, tmp_path / "stream.npz"


def test_prints_a_table_and_writes_json(files, tmp_path, monkeypatch, capsys) -> None:
    module = load_benchmark("accuracy")
    out = tmp_path / "out.json"
    runs = ["ensemble", "clip", "tent", "ramen:capacity=5,topk=2,visibility=causal"]
    arguments = [*map(str, files), "--text", "pets", "--seeds", "2", "--batch", "7", "--out", str(out)]
    for run in runs:
        arguments += ["--run", run]
    monkeypatch.setattr(sys, "argv", ["accuracy.py", *arguments])
    module.main()
    assert "40 images of 2 domains, 2 seed(s)" in capsys.readouterr().out
    record = json.loads(out.read_text())
    assert [r["method"] for r in record["results"]] == ["ensemble", "clip", "tent", "ramen"]
    ramen = record["results"][3]
    assert ramen["parameters"] == {"capacity": 5, "topk": 2, "visibility": "causal"}
    assert set(ramen["seeds"][0]["per_domain"]) == {"fog", "snow"}
    assert 0 < ramen["seeds"][0]["same_domain"] < 100
    zero_shot = [seed["accuracy"] for seed in record["results"][0]["seeds"]]
    assert zero_shot[0] == pytest.approx(zero_shot[1])  # the order of the stream does not matter to it
    assert record["hardware"]["torch"] == torch.__version__
