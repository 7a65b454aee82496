"""The mean of Ramen's steps over a stream."""

import pytest
import torch

import ramen
from ramen import testing
from ramen.classify.export import mean_step


def test_equals_the_mean_of_the_weights_that_images_were_answered_with() -> None:
    clf = testing.small_classifier()
    batches = [torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(n)) for n in (5, 3)]
    method = ramen.create("ramen", clf, lr=1e-2)
    taken = []
    plain = method.step

    def watched(*given):
        own = plain(*given)
        taken.append(own.affine.clone())
        return own

    method.step = watched
    for batch in batches:
        method.predict(batch)
    steps = torch.cat(taken) - clf.encoder.base
    assert steps.abs().max() > 5e-3

    fresh = ramen.create("ramen", clf, lr=1e-2)
    step, count = mean_step(fresh, batches)
    assert count == 8
    torch.testing.assert_close(step, steps.mean(0), rtol=0, atol=1e-6)
    # the memory is as if it had answered
    torch.testing.assert_close(fresh.predict(batches[0]).logits, method.predict(batches[0]).logits)


def test_images_that_are_not_finite_do_not_count() -> None:
    clf = testing.small_classifier()
    good = torch.randn(3, 3, 32, 32)
    bad = torch.cat([good, torch.full((1, 3, 32, 32), float("nan"))])
    expected, _ = mean_step(ramen.create("ramen", clf), [good])
    found, count = mean_step(ramen.create("ramen", clf), [bad])
    assert count == 3
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match="at least one image that can be used, got none"):
        mean_step(ramen.create("ramen", clf), [bad[3:]])
