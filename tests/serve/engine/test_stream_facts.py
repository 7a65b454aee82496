import json

import pytest

from ramen.serve.engine.stream_facts import StreamFacts
from ramen.serve.engine.stream_info import FeedbackCounts
from tests.fakes.served_results import answer, failure

FACTS = StreamFacts(("a", "b"), 100.0, 200.0, 7, 3, 2, 1, FeedbackCounts(4, 3, 2, 1), 1000)


def test_round_trip() -> None:
    assert StreamFacts.from_json(FACTS.to_json()) == FACTS
    fresh = StreamFacts()
    assert StreamFacts.from_json(fresh.to_json()) == fresh


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b"[]", b"null", b"{}", FACTS.to_json()[:-20], b'{"images": "x"}', b"\xff\xfe"]
)
def test_damage_is_found(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="facts of a stream cannot be read"):
        StreamFacts.from_json(damaged)


def test_each_fact_must_have_its_type() -> None:
    values = json.loads(FACTS.to_json())
    for name in values:
        with pytest.raises(ValueError, match="cannot be read"):
            StreamFacts.from_json(json.dumps({**values, name: {"no": "such"}, "images": "x"}).encode())


def test_answers_are_counted() -> None:
    results = [answer("x", "cat", "cat"), answer("y", "cat", "dog"), failure("z")]
    found = FACTS.with_answers(results, 1)
    assert (found.images, found.changed, found.fallbacks, found.errors) == (9, 4, 3, 2)
    assert found.last_used > 200


def test_reset() -> None:
    found = FACTS.forgotten()
    assert (found.classes, found.created, found.last_used) == (("a", "b"), 100.0, 200.0)
    assert (found.images, found.changed, found.errors, found.feedback) == (0, 0, 0, FeedbackCounts())
