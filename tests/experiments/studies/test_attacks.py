"""Attacks keep to their bound and do to the pretrained model what they are meant to do."""

import pytest
import torch

from ramen.data.registry import load
from ramen.data.streams.stream import make_stream
from ramen.experiments.studies import attacks
from ramen.experiments.studies.attacks import ATTACKS, Budget
from ramen.methods._steps import entropy
from ramen.models.tiny_clip.model import load_tiny


@pytest.fixture(scope="module")
def data():
    return load("tiny", domains=["fog", "neon"], pictures=12)


@pytest.fixture(scope="module")
def classifier(data):
    return load_tiny(data.classes)


@pytest.fixture(scope="module")
def own(data, classifier):
    stream = make_stream("mixed", data)
    return attacks.own_pixels(classifier, stream.read(slice(0, 16)))


def test_pixels_are_normalised_as_by_preprocess(classifier, own):
    torch.testing.assert_close(attacks.normalised(classifier, own / 255), classifier.preprocess(own))


@pytest.mark.parametrize("name", ["entropy", "target"])
@pytest.mark.parametrize("eps", [8 / 255, 0.01])
def test_changes_stay_within_the_bound(classifier, own, name, eps):
    own = own.clone()
    own[0], own[1] = 0, 255  # where the range of pixels is the tighter bound
    sent = ATTACKS[name](classifier, own, 0, Budget(eps, 3))
    assert sent.dtype == torch.uint8
    assert sent.shape == own.shape
    apart = (sent.int() - own.int()).abs()
    assert apart.max() <= 255 * eps + 1e-6
    assert apart.float().mean() > 0.3 * 255 * eps
    assert sent[0].max() <= 255 * eps + 1e-6
    assert sent[1].min() >= 255 - 255 * eps - 1e-6


def test_entropy_rises(classifier, own):
    before = entropy(attacks.zero_shot_logits(classifier, own))
    sent = attacks.highest_entropy(classifier, own, 0)
    after = entropy(attacks.zero_shot_logits(classifier, sent))
    assert (after > before).all()
    assert after.mean() > before.mean() + 1


def test_the_target_becomes_likely(classifier, own):
    target = attacks.target_class(classifier, 3)
    before, after = (
        attacks.zero_shot_logits(classifier, images).softmax(1)[:, target]
        for images in (own, attacks.one_target(classifier, own, 3))
    )
    assert (after >= before).all()
    assert after.mean() > before.mean() + 0.5


def test_targets_differ_between_seeds(classifier):
    assert len({attacks.target_class(classifier, seed) for seed in range(10)}) > 3


def test_flooding_sends_one_predicted_class(classifier, own):
    sent = attacks.flooding(classifier, own, 0)
    predicted = attacks.zero_shot_logits(classifier, sent).argmax(1)
    assert len(sent) == len(own)
    assert len(predicted.unique()) == 1
    known = {image.numpy().tobytes() for image in own}
    assert {image.numpy().tobytes() for image in sent} <= known
    assert predicted[0] == attacks.zero_shot_logits(classifier, own).argmax(1).mode().values


def test_noise_is_uniform(classifier, own):
    sent = attacks.noise(classifier, own, 0).float()
    assert sent.mean() == pytest.approx(127.5, abs=1)
    assert (sent.min(), sent.max()) == (0, 255)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_seed_decides(classifier, own, name):
    few, budget = own[:8], Budget(steps=1)
    first, again, other = (ATTACKS[name](classifier, few, seed, budget) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    if name in ("noise", "target"):
        assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eps": -0.1}, "eps must be finite and at least 0, got -0.1"),
        ({"eps": 8}, "eps must be at most 1, the range of a pixel, got 8"),
        ({"steps": 0}, "steps must be at least 1"),
    ],
)
def test_bad_budgets(given, message):
    with pytest.raises(ValueError, match=message):
        Budget(**given)


@pytest.mark.parametrize("name", ATTACKS)
def test_bad_images(classifier, own, name):
    with pytest.raises(ValueError, match=r"images must be uint8 of shape \(n, 3, 32, 32\)"):
        ATTACKS[name](classifier, own.float(), 0, None)
