"""What the methods share that can normalise with the statistics of the present batch."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from tests.oracles.mutable_model import stream

SETTINGS = {
    "tent": {"lr": 1e-2},
    "entmin": {},
    "note": {"lr": 1e-2, "memory": 7},
    "sar": {"lr": 1e-2, "margin": 0.8},
    "watt": {"rounds": 1, "steps": 1},
    "clipartt": {"iterations": 2},
    "mint": {"prior": 20.0},
}
# Where all of a few images are on one side of a ReLU, gradients are zero but for rounding; so many.
SIZE = 16
methods = pytest.mark.parametrize("name", SETTINGS)


def create(name: str, clf: ramen.ZeroShotClassifier, statistics: str = "batch") -> ramen.Method:
    return ramen.create(name, clf, **SETTINGS[name], statistics=statistics)


def resnet(dtype: str = "float64") -> ramen.ZeroShotClassifier:
    return testing.small_classifier("resnet", dtype=dtype)


def with_bad(images: Tensor, bad: float) -> Tensor:
    return torch.cat([images[:2], torch.full_like(images[:1], bad), images[2:]])


@methods
@pytest.mark.parametrize("bad", [torch.nan, 1e200])
def test_a_bad_image_leaves_no_trace(name: str, bad: float) -> None:
    """Not in the statistics either: the rest is answered as if it had not been in the batch.

    1e200 is finite, its activations are not: the pass that it has spoiled is made again without it.
    """
    clf = resnet()
    spoiled, clean = create(name, clf), create(name, clf)
    for images in stream(5, SIZE):
        a, b = spoiled.predict(with_bad(images, bad)), clean.predict(images)
        assert a.fallback.nonzero().tolist() == [[2]]
        torch.testing.assert_close(a.logits[~a.fallback], b.logits, rtol=0, atol=1e-6)
        assert a.logits.isfinite().all()
    for part, tensor in clean.state.content().items():
        torch.testing.assert_close(spoiled.state.content()[part], tensor, rtol=0, atol=1e-6)
    assert spoiled.images_refused == 5


@methods
def test_an_image_whose_variance_overflows_leaves_no_trace(name: str) -> None:
    """In fp32 the activations of 1e30 are finite, their squares are not."""
    clf = resnet("float32")
    images = stream(1, SIZE)[0].float()
    a, b = create(name, clf).predict(with_bad(images, 1e30)), create(name, clf).predict(images)
    assert a.fallback.nonzero().tolist() == [[2]]
    torch.testing.assert_close(a.logits[~a.fallback], b.logits, rtol=0, atol=1e-2)


@methods
def test_batch_mates_matter(name: str) -> None:
    images = stream(1)[0]
    together = create(name, resnet()).predict(images).logits[:2]
    fewer = create(name, resnet()).predict(images[:2]).logits
    assert not torch.allclose(together, fewer, atol=0.05)
    assert create(name, resnet()).batch_dependent
    assert create(name, resnet(), "source").batch_dependent == ramen.describe(name).batch_dependent


@methods
def test_the_running_statistics_are_the_default(name: str) -> None:
    clf = resnet("float32")
    default, source = ramen.create(name, clf, **SETTINGS[name]), create(name, clf, "source")
    other = create(name, clf)
    for images in (batch.float() for batch in stream(3)):
        out = default.predict(images).logits
        assert torch.equal(out, source.predict(images).logits)
        assert not torch.allclose(out, other.predict(images).logits, atol=0.05)


@methods
def test_an_encoder_without_batch_norm_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="statistics"):
        create(name, testing.small_classifier("vit"))
    with pytest.raises(ValueError, match="statistics"):
        create(name, resnet(), "robust")


def test_overflow_costs_passes_only_where_it_happens() -> None:
    counter = testing.CountingClassifier(resnet())
    method = create("tent", counter)
    method.predict(stream(1)[0])
    assert (counter.forwards, counter.backwards) == ([5], [5])
    method.predict(with_bad(stream(1)[0], 1e200))
    assert len(counter.backwards) == 1 + 3  # spoiled, each image on its own, without the culprit
