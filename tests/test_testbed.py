"""Known accuracies of the measuring model and stream that lie beside the checkout, where they do."""

import json

import pytest
import torch
from conftest import TESTBED, load_benchmark
from open_clip.transformer import VisionTransformer
from safetensors.torch import load_file

import ramen

pytestmark = pytest.mark.testbed


@pytest.fixture(scope="module")
def bench():
    benchmark = load_benchmark("accuracy")
    classifier, config = benchmark.load_classifier(TESTBED, "cifar10", "cpu", "float32")
    stream = benchmark.Stream(TESTBED / "cifar10c_s5_1000.npz", config["mean"], config["std"], None)
    return classifier, stream


def test_zero_shot_equals_the_plain_tower_and_its_known_accuracy(bench) -> None:
    """The whole stream gives 76.21 (benchmarks/accuracy.py); a part of it, against a plain forward pass."""
    classifier, stream = bench
    index = stream.order(0)[:1500]
    method = ramen.create("ensemble", classifier)
    labels = torch.cat([method.predict(stream.images(part)).labels for part in index.split(100)])
    hits = (labels == stream.labels[index]).double().mean().item()
    assert 100 * hits == pytest.approx(76.21, abs=3 * 1.1)  # three standard errors of 1,500 images

    plain, text = plain_tower()
    with torch.no_grad():
        features = torch.nn.functional.normalize(plain(stream.images(index[:200])), dim=-1)
    assert torch.equal((features @ text.T).argmax(1), labels[:200])


def plain_tower() -> tuple[torch.nn.Module, torch.Tensor]:
    config = json.loads((TESTBED / "config.json").read_text())
    tower = VisionTransformer(**config["architecture"]).eval()
    tower.load_state_dict({k: v.float() for k, v in load_file(TESTBED / "vision.safetensors").items()})
    text = load_file(TESTBED / "text_features.safetensors")["cifar10"].float()[:, :7]
    return tower, torch.nn.functional.normalize(text.mean(1), dim=-1)


def test_causal_labels_are_the_same_at_every_batch_size(bench) -> None:
    classifier, stream = bench
    index = stream.order(0)[:300]
    labels = []
    for batch in (1, 7, 100):
        method = ramen.create("ramen", classifier, capacity=20, topk=5, visibility="causal")
        labels.append(torch.cat([method.predict(stream.images(p)).labels for p in index.split(batch)]))
    assert torch.equal(labels[0], labels[1])
    assert torch.equal(labels[0], labels[2])
