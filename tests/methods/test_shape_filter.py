"""Ramen with DeYO's filter: only images whose prediction depends on their shape enter the memory."""

import pytest
import torch

import ramen
from ramen import testing
from ramen.images.views import shuffle_patches
from ramen.methods import predict_together
from ramen.utils.numerics import pair_scores

PAPER = {"capacity": 100, "topk": 2, "beta": 5.0, "lr": 1e-2, "codec": "fp32"}


@pytest.fixture(scope="module")
def classifier():
    return testing.small_classifier("vit")


def batches(count=4, size=6, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 32, 32, generator=draws) for _ in range(count)]


def stored(method):
    """The places in the stream of all entries."""
    return sorted(method.memory.state()["numbers"][1:].tolist())


def depends(classifier, image, number, threshold, seed=0):
    """The same for one image, with its patches moved one by one."""
    order = pair_scores(seed, torch.tensor([number]), torch.arange(16)).argsort(1)
    with torch.no_grad():
        whole = classifier.logits(classifier.encode(image[None])).softmax(1)[0]
        shuffled = shuffle_patches(image[None], order, 4)
        after = classifier.logits(classifier.encode(shuffled)).softmax(1)[0]
    return bool(whole.max() - after[whole.argmax()] > threshold)


def test_only_images_with_a_shape_enter_the_memory(classifier):
    method, expected, seen = ramen.create("ramen", classifier, shape_filter=0.02, **PAPER), [], 0
    for images in batches():
        expected += [seen + n for n, image in enumerate(images) if depends(classifier, image, seen + n, 0.02)]
        assert not method.predict(images).fallback.any()  # all are answered by the method
        seen += len(images)
        assert stored(method) == expected
    assert 0 < len(expected) < seen


@pytest.mark.parametrize("visibility", ["batch", "causal"])
def test_answers_are_those_of_a_memory_without_the_others(classifier, visibility):
    """Each answer is that of a plain Ramen which has seen the storable images alone, and then this one."""
    method = ramen.create("ramen", classifier, shape_filter=0.02, visibility=visibility, **PAPER)
    past = []
    for place, images in enumerate(batches(3, size=1)):
        own = depends(classifier, images[0], place, 0.02)
        plain = ramen.create("ramen", classifier, visibility=visibility, **PAPER)
        for image in past:
            plain.predict(image)
        found = method.predict(images)
        if own:
            torch.testing.assert_close(found.logits, plain.predict(images).logits, atol=1e-4, rtol=1e-4)
            past.append(images)
        elif not past:
            torch.testing.assert_close(found.logits, found.zero_shot_logits, atol=1e-4, rtol=1e-4)
    assert past


def test_a_filter_that_stops_nothing_or_everything(classifier):
    open_one, closed = (ramen.create("ramen", classifier, shape_filter=t, **PAPER) for t in (-1.0, 1.0))
    plain = ramen.create("ramen", classifier, **PAPER)
    for images in batches(3):
        expected = plain.predict(images)
        assert torch.equal(open_one.predict(images).logits, expected.logits)
        answer = closed.predict(images)
        torch.testing.assert_close(answer.logits, expected.zero_shot_logits, atol=1e-4, rtol=1e-4)
        assert not answer.fallback.any()
    assert stored(closed) == []
    bad = batches(1)[0]
    bad[2] = torch.nan
    assert closed.predict(bad).fallback.tolist() == [False, False, True, False, False, False]


def test_the_size_of_batches_does_not_matter_if_each_image_sees_the_past(classifier):
    settings = {"shape_filter": 0.02, "visibility": "causal", **PAPER}
    whole, single = (ramen.create("ramen", classifier, **settings) for _ in range(2))
    for images in batches(3):
        together = whole.predict(images).logits
        alone = torch.cat([single.predict(image[None]).logits for image in images])
        torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    assert stored(whole) == stored(single)


def test_streams_in_shared_steps_have_the_same_filter(classifier):
    alone, shared = (ramen.create("ramen", classifier, shape_filter=0.02, **PAPER) for _ in range(2))
    other = ramen.create("ramen", classifier, **PAPER)
    for images in batches(3):
        expected = alone.predict(images).logits
        found, _ = predict_together([(shared, images), (other, images)])
        torch.testing.assert_close(found.logits, expected, atol=1e-4, rtol=1e-4)
    assert stored(shared) == stored(alone)
    assert len(stored(other)) > len(stored(shared))


def test_it_is_off_by_default_and_costs_a_pass(classifier):
    plain = ramen.create("ramen", classifier, **PAPER)
    assert plain.parameters["shape_filter"] is None
    assert plain.passes() == (2, 1)
    assert ramen.create("ramen", classifier, shape_filter=0.2, **PAPER).passes() == (3, 1)
    calls = []
    encode = classifier.encode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifier, "encode", lambda *a, **k: calls.append(len(a[0])) or encode(*a, **k))
        ramen.create("ramen", classifier, shape_filter=0.2, **PAPER).predict(batches(1)[0])
    assert calls == [6, 6, 6]
