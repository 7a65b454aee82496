import json
from dataclasses import replace

import pytest

from ramen.client.operations import FeedbackCounts
from ramen.serve.engine.stream import DamagedFactsError, StreamFacts

FACTS = StreamFacts(("a", "b"), 100.0, 200.0, 7, 3, 2, 1, FeedbackCounts(4, 3, 2, 1), 1000, 6)


def test_round_trip() -> None:
    assert StreamFacts.from_json(FACTS.to_json()) == FACTS
    fresh = StreamFacts()
    assert StreamFacts.from_json(fresh.to_json()) == fresh


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        FACTS.to_json()[:-20],
        b'{"images": "x"}',
        b"\xff\xfe",
        b"1e999",
        b"[" * 300_000,
    ],
)
def test_damage_is_found(damaged: bytes) -> None:
    with pytest.raises(DamagedFactsError):
        StreamFacts.from_json(damaged)


def test_each_fact_must_have_its_type() -> None:
    values = json.loads(FACTS.to_json())
    for name in values:
        with pytest.raises(DamagedFactsError):
            StreamFacts.from_json(json.dumps({**values, name: {"no": "such"}, "images": "x"}).encode())


def test_each_changed_byte_is_found() -> None:
    content = FACTS.to_json()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        with pytest.raises(DamagedFactsError):
            StreamFacts.from_json(bytes(damaged))


def test_facts_of_version_0_2_have_no_checksum() -> None:
    values = json.loads(FACTS.to_json())
    for name in ("sha256", "saved"):
        del values[name]
    assert StreamFacts.from_json(json.dumps(values).encode()) == replace(FACTS, saved=0)


def test_reset() -> None:
    found = FACTS.forgotten()
    assert (found.classes, found.created, found.last_used) == (("a", "b"), 100.0, 200.0)
    assert (found.images, found.changed, found.errors, found.feedback) == (0, 0, 0, FeedbackCounts())
