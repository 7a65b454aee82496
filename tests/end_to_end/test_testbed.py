"""Known accuracies of the measuring model and stream that may be beside the checkout."""

import json

import pytest
import torch
from open_clip.transformer import VisionTransformer
from safetensors.torch import load_file

import ramen
from ramen.data.catalogue import load
from ramen.data.streams.stream import make_stream
from ramen.experiments.experiment import plan
from ramen.experiments.workers import run_all
from ramen.models.names import load_model
from tests.helpers.shared_files import MEASURING_MODEL
from tests.helpers.slow_tests import full

pytestmark = pytest.mark.testbed

TESTBED = MEASURING_MODEL.path
FIRST = slice(0, full(200, 40))
MODEL, STREAM = f"stored:{TESTBED}", TESTBED / "cifar10c_s5_1000.npz"


@pytest.fixture(scope="module")
def bench():
    dataset = load("arrays", STREAM, classes="cifar10")
    return load_model(MODEL, dataset.classes), make_stream("mixed", dataset, 0)


def test_zero_shot_equals_the_plain_tower_and_its_known_accuracy(bench, tmp_path) -> None:
    """The whole stream gives 76.21; a part of it, and of that a part against a plain forward pass."""
    per_domain = full(100, 20)
    (experiment,) = plan(
        ["ensemble"],
        model=MODEL,
        data="arrays",
        root=STREAM,
        preset="cifar10c",
        data_options={"classes": "cifar10"},
        protocol_parameters={"per_domain": per_domain},
    )
    (result,) = run_all([experiment], tmp_path)
    images = 15 * per_domain
    assert result["cost"]["images"] == images
    standard_error = 100 * (0.7621 * 0.2379 / images) ** 0.5
    assert result["scores"]["average"] == pytest.approx(76.21, abs=3 * standard_error)

    classifier, stream = bench
    pixels = stream.read(FIRST)
    labels = ramen.create("ensemble", classifier).predict(classifier.preprocess(pixels)).labels
    config = json.loads((TESTBED / "config.json").read_text())
    mean, std = (torch.tensor(config[name]).view(3, 1, 1) for name in ("mean", "std"))
    plain, text = plain_tower(config)
    with torch.no_grad():
        features = torch.nn.functional.normalize(plain((pixels / 255 - mean) / std), dim=-1)
    assert torch.equal((features @ text.T).argmax(1), labels)


def plain_tower(config: dict) -> tuple[torch.nn.Module, torch.Tensor]:
    tower = VisionTransformer(**config["architecture"]).eval()
    tower.load_state_dict({k: v.float() for k, v in load_file(TESTBED / "vision.safetensors").items()})
    text = load_file(TESTBED / "text_features.safetensors")["cifar10"].float()[:, :7]
    return tower, torch.nn.functional.normalize(text.mean(1), dim=-1)


def with_the_modules_own_passes(classifier: ramen.ZeroShotClassifier) -> ramen.ZeroShotClassifier:
    tower, _ = plain_tower(json.loads((TESTBED / "config.json").read_text()))
    embeddings, scale = classifier.template_embeddings, classifier.logit_scale
    like = {"device": classifier.device, "dtype": classifier.dtype}
    return ramen.ZeroShotClassifier(tower, embeddings, scale, fused=False, **like)


def test_written_out_passes_give_the_modules_logits(bench) -> None:
    classifier, stream = bench
    assert classifier.encoder.fused
    plain = with_the_modules_own_passes(classifier)
    images = classifier.preprocess(stream.read(FIRST))
    ours, own = (clf.logits(clf.encode(images)) for clf in (classifier, plain))
    torch.testing.assert_close(ours, own, rtol=0, atol=1e-4)


@pytest.mark.gpu
def test_written_out_passes_give_the_modules_answers_in_half_precision(bench) -> None:
    """The whole stream, in which every answer depends on the gradients of those before it."""
    _, stream = bench
    fast = load_model(MODEL, stream.dataset.classes, device="cuda", dtype="float16")
    answers = []
    for classifier in (fast, with_the_modules_own_passes(fast)):
        method = ramen.create("ramen", classifier, capacity=750, topk=50, lr=2e-2)
        batches = (fast.preprocess(stream.read(batch)) for batch in stream.batches(100))
        answers.append(torch.cat([method.predict(images).labels for images in batches]))
    assert (answers[0] == answers[1]).float().mean() >= 0.995


def test_causal_labels_are_the_same_at_every_batch_size(bench) -> None:
    classifier, stream = bench
    count, capacity, topk = full((300, 20, 5), (60, 4, 3))  # classes have more images than fit
    images = classifier.preprocess(stream.read(slice(0, count)))
    labels = []
    for batch in full((1, 7, count // 3), (7, count // 3)):
        method = ramen.create("ramen", classifier, capacity=capacity, topk=topk, visibility="causal")
        labels.append(torch.cat([method.predict(part).labels for part in images.split(batch)]))
    assert all(torch.equal(labels[0], other) for other in labels[1:])
