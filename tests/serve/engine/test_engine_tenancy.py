"""What one tenant sends does not change what another is answered."""

import numpy as np
import pytest

from tests.helpers.sent_images import sent
from tests.serve.engine.engines import PATIENCE, engine

OWN = range(24)


def answers(clf, *, others: bool, invariant: bool) -> list:
    """Of tenant A, with or without the traffic of two others, one of them with other classes."""
    with engine(clf, invariant=invariant, max_delay_ms=20.0) as where:
        where.create_stream("a")
        if others:
            where.create_stream("b")
            where.create_stream("c", ["cat", "dog", "bird"])
        tickets = []
        for seed in OWN:
            if others:
                where.submit("b", sent(1000 + 2 * seed, 1001 + 2 * seed))
                where.submit("c", sent(5000 + seed))
            tickets.append(where.submit("a", sent(seed)))
        found = [ticket.future.result(PATIENCE)[0] for ticket in tickets]
        assert where.statistics().mean_batch > 1
    return found


def test_answers_are_the_same_beside_others_up_to_rounding(clf) -> None:
    alone, beside = (answers(clf, others=others, invariant=False) for others in (False, True))
    assert [one.result.label for one in alone] == [one.result.label for one in beside]
    assert [one.result.support for one in alone] == [one.result.support for one in beside]
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-4)


def test_with_invariant_answers_are_the_same_to_the_last_bit(clf) -> None:
    alone, beside = (answers(clf, others=others, invariant=True) for others in (False, True))
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(one.probabilities, other.probabilities)
        assert one.result.top == other.result.top
        assert one.result.zero_shot_probability == other.result.zero_shot_probability


@pytest.mark.parametrize("invariant", [False, True])
def test_tenants_with_the_same_images_have_the_same_answers(clf, invariant: bool) -> None:
    """A control: tenants that shared a memory would find each other's images."""
    with engine(clf, invariant=invariant, max_delay_ms=20.0) as where:
        tickets = [(where.submit("a", sent(seed)), where.submit("b", sent(seed))) for seed in OWN]
        for one, other in tickets:
            (first,), (second,) = one.future.result(PATIENCE), other.future.result(PATIENCE)
            assert first.result.support == second.result.support
            np.testing.assert_allclose(first.probabilities, second.probabilities, atol=1e-4)
