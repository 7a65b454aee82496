"""A real network of timm and real photographs: EfficientNet-Lite0 with its own head on ImageNet."""

import io

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import ramen
from ramen import Preprocess, ZeroShotClassifier
from tests.helpers.shared_files import REAL_NETWORK
from tests.helpers.slow_tests import RUN_SLOW_TESTS, full

pytestmark = pytest.mark.testbed_real
IMAGES = full(1000, 20)
PREPROCESS = Preprocess(224, (127 / 255,) * 3, (128 / 255,) * 3)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    module = timm.create_model("tf_efficientnet_lite0")
    weights = load_file(REAL_NETWORK.path / "lite0_fp16.safetensors")
    module.load_state_dict({name: value.float() for name, value in weights.items()}, strict=False)
    return module.eval()


@pytest.fixture(scope="module")
def photographs() -> tuple[Tensor, Tensor]:
    with np.load(REAL_NETWORK.path / "test.npz") as file:
        data, offsets, labels = file["data"], file["offsets"], file["labels"]
    chosen = np.linspace(0, len(labels) - 1, IMAGES).round().astype(int)
    pixels = [
        np.asarray(Image.open(io.BytesIO(data[offsets[i] : offsets[i + 1]].tobytes())).convert("RGB"))
        for i in chosen
    ]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    return images, torch.from_numpy(labels[chosen].astype(np.int64))


@torch.no_grad()
def test_logits_and_accuracy(network: nn.Module, photographs: tuple[Tensor, Tensor]) -> None:
    """As measured on the CPU: 74.1 % with its own logits, 73.2 % as a cosine classifier without lengths."""
    own = ZeroShotClassifier.from_classifier(network, preprocess=PREPROCESS)
    directions = F.normalize(network.classifier.weight, dim=1)
    features = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    features.load_state_dict(network.state_dict(), strict=False)
    cosine = ZeroShotClassifier(features, directions, 42.9, preprocess=PREPROCESS)
    assert len(own.encoder.base) == 42_016
    pixels, labels = photographs
    right = dict.fromkeys(("own", "cosine"), 0)
    for some, truth in zip(pixels.split(20), labels.split(20), strict=True):
        images = PREPROCESS(some)
        logits = own.logits(own.encode(images))
        expected = network(images)
        assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
        right["own"] += int((logits.argmax(1) == truth).sum())
        right["cosine"] += int((cosine.logits(cosine.encode(images)).argmax(1) == truth).sum())
    if RUN_SLOW_TESTS:
        assert abs(right["own"] - 741) <= 2
        assert abs(right["cosine"] - 732) <= 2
    else:
        assert right["own"] >= 10


def test_it_adapts(network: nn.Module, photographs: tuple[Tensor, Tensor]) -> None:
    clf = ZeroShotClassifier.from_classifier(network, preprocess=PREPROCESS)
    images = clf.preprocess(photographs[0][:6])
    out = ramen.create("ramen", clf, capacity=75, topk=1, beta=2.0, lr=1e-2).predict(images)
    assert out.logits.isfinite().all()
    assert not torch.equal(out.logits, out.zero_shot_logits)
    with torch.no_grad():
        torch.testing.assert_close(out.zero_shot_logits, network(images), rtol=1e-3, atol=1e-3)
