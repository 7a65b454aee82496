import numpy as np
import pytest

from ramen.client.operations import FeedbackCounts
from ramen.serve.engine.statistics import AnswerIds

NONE = FeedbackCounts()
FOUND = FeedbackCounts(labels=1, correct=1)
UNKNOWN = FeedbackCounts(unknown=1)


def add(ids: AnswerIds, stream: int, label: int, zero_shot: int) -> str:
    return f"{ids.start}-{ids.add(stream, np.array([label]), np.array([zero_shot]))}"


def test_ids_are_unique_also_across_starts() -> None:
    one, other = AnswerIds(), AnswerIds()
    found = [add(ids, 1, 0, 0) for ids in (one, other) for _ in range(100)]
    assert len(set(found)) == 200


def test_labels_are_compared_with_both_answers_and_each_counts_once() -> None:
    ids = AnswerIds()
    first, second = add(ids, 1, 3, 4), add(ids, 1, 3, 4)
    assert ids.compare(1, first, 3, NONE) == FOUND
    assert ids.compare(1, second, 4, FOUND) == FeedbackCounts(labels=2, correct=1, zero_shot_correct=1)
    assert ids.compare(1, first, 3, NONE) == UNKNOWN


def test_only_the_last_answers_of_a_stream_are_known() -> None:
    ids = AnswerIds(per_stream=3)
    old = [add(ids, 1, 0, 1) for _ in range(5)]
    other = add(ids, 2, 0, 1)
    assert [ids.compare(1, answer, 0, NONE) for answer in old] == [UNKNOWN] * 2 + [FOUND] * 3
    assert ids.compare(2, other, 0, NONE) == FOUND


def test_only_the_last_answers_of_all_streams_are_known() -> None:
    ids = AnswerIds(in_all=8)
    found = [add(ids, stream, 0, 1) for stream in range(20)]
    known = [ids.compare(stream, answer, 0, NONE) == FOUND for stream, answer in enumerate(found)]
    assert known == [False] * 12 + [True] * 8


def test_what_is_remembered_grows_without_a_loss() -> None:
    ids = AnswerIds()
    found = [add(ids, 1, number % 7, 9) for number in range(9000)]
    assert all(ids.compare(1, answer, n % 7, NONE) == FOUND for n, answer in enumerate(found))


def test_forgotten_streams() -> None:
    ids = AnswerIds()
    answer = add(ids, 1, 0, 1)
    ids.forget(1)
    assert add(ids, 2, 0, 1)
    assert ids.compare(2, answer, 0, NONE) == UNKNOWN


@pytest.mark.parametrize(
    "wrong", ["", "-", "1", "{}-0", "{}--1", "{}-1x", "{}-²", "{}-" + "9" * 30, "{}-1025"]
)
def test_what_is_no_id_is_unknown(wrong: str) -> None:
    ids = AnswerIds()
    start = add(ids, 1, 0, 1).partition("-")[0]
    assert ids.compare(1, wrong.format(start), 0, NONE) == UNKNOWN


def test_a_batch_is_numbered_at_once() -> None:
    ids = AnswerIds(per_stream=4)
    one, other = ids.add(1, np.arange(3), np.arange(3)), ids.add(1, np.arange(3), np.zeros(3))
    assert other == one + 3
    counts = [ids.compare(1, f"{ids.start}-{one + n}", n % 3, NONE) for n in range(6)]
    assert [known.correct for known in counts] == [0, 0, 1, 1, 1, 1]
