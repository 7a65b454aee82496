import pytest

from ramen.serve.engine.answer_ids import AnswerIds
from ramen.serve.engine.stream_info import FeedbackCounts

NONE = FeedbackCounts()
FOUND = FeedbackCounts(labels=1, correct=1)
UNKNOWN = FeedbackCounts(unknown=1)


def test_ids_are_unique_also_across_starts() -> None:
    one, other = AnswerIds(), AnswerIds()
    found = [ids.add(1, 0, 0) for ids in (one, other) for _ in range(100)]
    assert len(set(found)) == 200


def test_labels_are_compared_with_both_answers_and_each_counts_once() -> None:
    ids = AnswerIds()
    first, second = ids.add(1, 3, 4), ids.add(1, 3, 4)
    assert ids.compare(1, first, 3, NONE) == FOUND
    assert ids.compare(1, second, 4, FOUND) == FeedbackCounts(labels=2, correct=1, zero_shot_correct=1)
    assert ids.compare(1, first, 3, NONE) == UNKNOWN


def test_only_the_last_answers_of_a_stream_are_known() -> None:
    ids = AnswerIds(per_stream=3)
    old = [ids.add(1, 0, 1) for _ in range(5)]
    other = ids.add(2, 0, 1)
    assert [ids.compare(1, answer, 0, NONE) for answer in old] == [UNKNOWN] * 2 + [FOUND] * 3
    assert ids.compare(2, other, 0, NONE) == FOUND


def test_only_the_last_answers_of_all_streams_are_known() -> None:
    ids = AnswerIds(in_all=8)
    found = [ids.add(stream, 0, 1) for stream in range(20)]
    known = [ids.compare(stream, answer, 0, NONE) == FOUND for stream, answer in enumerate(found)]
    assert known == [False] * 12 + [True] * 8


def test_what_is_remembered_grows_without_a_loss() -> None:
    ids = AnswerIds()
    found = [ids.add(1, number % 7, 9) for number in range(9000)]
    assert all(ids.compare(1, answer, n % 7, NONE) == FOUND for n, answer in enumerate(found))


def test_forgotten_streams() -> None:
    ids = AnswerIds()
    answer = ids.add(1, 0, 1)
    ids.forget(1)
    assert ids.add(2, 0, 1)
    assert ids.compare(2, answer, 0, NONE) == UNKNOWN


@pytest.mark.parametrize(
    "wrong", ["", "-", "1", "{}-0", "{}--1", "{}-1x", "{}-²", "{}-" + "9" * 30, "{}-1025"]
)
def test_what_is_no_id_is_unknown(wrong: str) -> None:
    ids = AnswerIds()
    start = ids.add(1, 0, 1).partition("-")[0]
    assert ids.compare(1, wrong.format(start), 0, NONE) == UNKNOWN
