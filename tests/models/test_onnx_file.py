"""ONNX files of classifiers: what onnxruntime computes from them, and what they say of themselves."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ramen import Preprocess, ZeroShotClassifier, testing
from ramen.models.export import write_onnx
from tests.models.test_network_head import Mlp, lively

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def answers(path: Path, images: torch.Tensor) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["logits", "embeddings"], {"images": images.numpy()})


@torch.no_grad()
def test_moved_norm_parameters_are_in_the_file(tmp_path: Path) -> None:
    clf = testing.small_classifier()
    generator = torch.Generator().manual_seed(3)
    affine = clf.encoder.base + 0.1 * torch.randn(len(clf.encoder.base), generator=generator)
    written = write_onnx(clf, tmp_path / "moved.onnx", affine, "a snapshot")
    assert written.difference < 1e-4
    images = torch.randn(4, 3, 32, 32, generator=generator)
    logits, embeddings = answers(written.path, images)
    expected = clf.encode(images, affine)
    np.testing.assert_allclose(embeddings, expected.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(logits, clf.logits(expected).numpy(), rtol=0, atol=1e-3)
    assert np.abs(embeddings - clf.encode(images).numpy()).max() > 0.01
    facts = {entry.key: entry.value for entry in onnx.load(written.path).metadata_props}
    assert facts["about"] == "a snapshot"
    assert json.loads(facts["classes"]) == list(clf.classes)
    assert json.loads(facts["preprocess"])["size"] == [32, 32]


@torch.no_grad()
def test_a_networks_own_logits_are_in_the_file(tmp_path: Path) -> None:
    network = lively(Mlp())
    clf = ZeroShotClassifier.from_classifier(network, preprocess=Preprocess(32))
    written = write_onnx(clf, tmp_path / "network.onnx")
    images = torch.randn(2, 3, 32, 32)
    np.testing.assert_allclose(answers(written.path, images)[0], network(images).numpy(), rtol=0, atol=1e-4)


def test_a_graph_that_computes_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clf = ZeroShotClassifier.from_classifier(lively(Mlp()), preprocess=Preprocess(32))
    monkeypatch.setattr("ramen.models.export._largest_difference", lambda *given: 0.2)
    with pytest.raises(ValueError, match=r"computes other logits than torch, by 20.0% of the largest"):
        write_onnx(clf, tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="dtype"):
        write_onnx(testing.small_classifier(dtype="float16"), tmp_path / "half.onnx")
    sizeless = ZeroShotClassifier(Mlp().trunk, torch.randn(2, 512))
    with pytest.raises(ValueError, match="the classifier must know its image size"):
        write_onnx(sizeless, tmp_path / "any.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"need the package onnxruntime: pip install 'ramen-tta\[exp"
    ):
        write_onnx(testing.small_classifier(), tmp_path / "a.onnx")


@pytest.mark.parametrize("kind", ["vit", "resnet"])
@torch.no_grad()
def test_a_frozen_encoder_is_an_ordinary_module(kind: str) -> None:
    encoder = testing.small_classifier(kind, dtype="float64").encoder
    affine = encoder.base + 0.1 * torch.randn(len(encoder.base), dtype=torch.float64)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    for chosen in (None, affine):
        frozen = encoder.frozen(chosen)
        expected = encoder(images, chosen, normalize=False)
        torch.testing.assert_close(frozen(images), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="affine"):
        encoder.frozen(affine[None])
