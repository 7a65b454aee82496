"""A stream that one engine leaves to another one."""

from pathlib import Path

import pytest

from ramen.client.operations import InvalidRequestError, NoSuchStreamError, StreamElsewhereError
from tests.oracles.answers_by_hand import assert_same_results
from tests.serve.engine.engines import ask, engine, make
from tests.serve.engine.test_engine import by_hand


def test_another_engine_continues_where_one_has_stopped(clf, tmp_path: Path) -> None:
    state = str(tmp_path)
    with engine(clf, state=state) as one, engine(clf, state=state) as other:
        results = [ask(one, "a", seed)[0].result for seed in range(5)]
        with pytest.raises(StreamElsewhereError):
            ask(other, "a", 5)
        one.run(one.engine.release("a"))
        assert not one.engine.is_loaded("a")
        results += [ask(other, "a", seed)[0].result for seed in range(5, 12)]
        with pytest.raises(StreamElsewhereError):
            ask(one, "a", 12)
        other.run(other.engine.release("a"))
        results += [ask(one, "a", 12)[0].result]
        assert one.stream("a").images == 13
    assert_same_results(results, by_hand(make(clf), *range(13)))


def test_answers_from_before_are_not_matched_with_labels(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path)) as one, engine(clf, state=str(tmp_path)) as other:
        (answer,) = ask(one, "a", 1)
        one.run(one.engine.release("a"))
        other.set_classes("a", ["cat", "dog"])
        other.run(other.engine.release("a"))
        ask(one, "a", 2)
        assert one.feedback("a", [(answer.id, "cat")]).unknown == 1


def test_a_stream_that_was_deleted_elsewhere_is_forgotten(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path)) as one, engine(clf, state=str(tmp_path)) as other:
        ask(one, "a", 1)
        one.run(one.engine.release("a"))
        other.delete("a")
        one.run(one.engine.release("a"))
        assert one.streams() == []
        with pytest.raises(NoSuchStreamError):
            one.stream("a")


def test_a_stream_that_nobody_knows(clf) -> None:
    with engine(clf) as one:
        one.run(one.engine.release("a"))
        assert one.streams() == []
        with pytest.raises(InvalidRequestError):
            one.run(one.engine.release("../a"))
