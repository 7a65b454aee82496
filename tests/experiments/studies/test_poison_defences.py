"""Variants of Ramen that might defend it: who is admitted, and how long steps are."""

import pytest
import torch

from ramen.experiments.studies.poison_defences import EvidenceRamen, QuotaRamen, SourceQuota, user_of
from ramen.methods.ramen import Ramen
from ramen.testing import small_classifier


def test_nobody_has_more_than_the_share_of_the_window():
    quota, admitted = SourceQuota(share=0.25, window=8), []
    for source in [0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0, 5, 5, 5] * 4:
        if quota.admits(source):
            admitted.append(source)
        lately = admitted[-8:]
        assert all(lately.count(one) <= 2 for one in set(lately))
    assert admitted[:3] == [0, 0, 1]


@pytest.mark.parametrize(("given", "message"), [({"share": -1}, "share"), ({"window": 0}, "window")])
def test_bad_quotas(given, message):
    with pytest.raises(ValueError, match=message):
        SourceQuota(**given)


def test_benign_images_come_from_many_users():
    assert [user_of(number) for number in (0, 1, 19, 20)] == [1, 2, 20, 1]


def test_what_is_above_the_quota_is_answered_zero_shot_and_not_stored():
    method = QuotaRamen(small_classifier(), capacity=8, topk=2)
    images = torch.randn(13, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    method.sources = torch.zeros(13, dtype=torch.int64)
    out = method.predict(images)
    assert out.fallback.tolist() == [False] * 10 + [True] * 3  # a tenth of 100 is ten
    assert torch.equal(out.logits[10:], out.zero_shot_logits[10:])
    assert len(method.memory) == 10
    method.reset()
    assert method.predict(images).fallback.sum() == 3  # who has sent what is forgotten, too


def test_steps_grow_with_what_is_stored():
    """With two of eight places filled, a quarter of the step."""
    classifier = small_classifier()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    parameters = {"capacity": 4, "topk": 2, "lr": 1e-2, "beta": 0.0}
    places = 2 * classifier.num_classes
    steps = []
    for kind in (Ramen, EvidenceRamen):
        method = kind(classifier, **parameters)
        taken = method.step

        def watched(first, usable, taken=taken):
            steps.append(taken(first, usable))
            return steps[-1]

        method.step = watched
        method.predict(images)
    base = classifier.encoder.base
    whole, scaled = (step.affine - base for step in steps)
    assert whole.abs().max() > 0
    torch.testing.assert_close(scaled, whole * 2 / places, rtol=1e-4, atol=1e-7)
