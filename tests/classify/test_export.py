"""``ramen export`` from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from ramen.cli import app

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What would be written: the graphs themselves are tested with ``write_onnx``."""
    from ramen.models import export

    calls: list[tuple] = []

    def write(classifier, path, affine=None, about="zero-shot"):
        calls.append((classifier, affine, about))
        return export.WrittenFile(path, 1e-7)

    monkeypatch.setattr(export, "write_onnx", write)
    return calls


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def photos(folder: Path) -> Path:
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "damaged.png").write_bytes(b"no image")
    return folder


def test_zero_shot(written: list[tuple], tmp_path: Path) -> None:
    output = call("--classes", "cat,dog", "--out", tmp_path / "a.onnx", "--json")
    ((classifier, affine, about),) = written
    assert classifier.classes == ("cat", "dog")
    assert (affine, about) == (None, "zero-shot")
    assert json.loads(output)["difference_from_torch"] == 1e-7


def test_a_snapshot(written: list[tuple], tmp_path: Path) -> None:
    folder = photos(tmp_path)
    call("--classes", "cat,dog", "--out", tmp_path / "a.onnx", "--snapshot", folder, "--set", "lr=0.01")
    ((classifier, affine, about),) = written
    step = affine - classifier.encoder.base
    assert 0 < step.abs().max() <= 0.01 + 1e-6
    assert torch.isfinite(step).all()
    assert about == "frozen snapshot, the mean step of 4 images"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--classes", "cat,dog", "--set", "lr=1"), "--set belongs to --snapshot"),
        ((), "give the classes with --classes or with"),
        (("--classes", "cat,dog", "--snapshot", "/nothing/here"), "there is no file or folder"),
    ],
)
def test_wrong_usage(arguments: tuple, message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", "--out", str(tmp_path / "a.onnx"), *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
