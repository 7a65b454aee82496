"""Streams that do not fit into memory go to disk, and come back as if they had always been there."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from ramen import testing
from ramen.serve.engine.errors import BadRequestError, StreamElsewhereError
from tests.helpers.sent_images import sent
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.serve.engine.engines import PATIENCE, ask, engine
from tests.serve.store.streams import assert_same_state

ONE_STREAM = 1  # a budget that no stream fits into: then there is one at a time


def state(where, name: str) -> dict:
    stream = where._table.find(name)
    with where._room.held(stream):
        return where._residency.open(stream).method.state_dict()


def run(clf, names: str, rounds: int = 8, **settings) -> tuple[list, dict, object]:
    with engine(clf, invariant=True, **settings) as where:
        found = [
            ask(where, name, 10 * place + 100 * n)[0]
            for n in range(rounds)
            for place, name in enumerate(names)
        ]
        states = {name: state(where, name) for name in names}
        return found, states, where.statistics()


def test_streams_that_are_put_to_disk_come_back_bit_for_bit(clf) -> None:
    expected, states, calm = run(clf, "abcd")
    found, again, busy = run(clf, "abcd", streams_budget=ONE_STREAM)
    assert (calm.parked, busy.resident_streams) == (0, 1)
    assert busy.parked >= 31  # every image brings another stream
    for one, other in zip(found, expected, strict=True):
        assert one.result == other.result
        np.testing.assert_array_equal(one.probabilities, other.probabilities)
    for name in "abcd":
        assert_same_state(again[name], states[name])


def test_streams_in_one_batch_that_do_not_fit_together_take_turns(clf) -> None:
    """Requests of many streams at once, with memory for one of them."""
    with engine(clf, streams_budget=ONE_STREAM, max_delay_ms=5.0) as where:
        tickets = [(name, where.submit(name, sent(n))) for n in range(5) for name in "abcdef"]
        for _, ticket in tickets:
            assert ticket.future.result(PATIENCE)[0].result.adapted
        assert where.statistics().resident_streams == 1
        assert [info.images for info in where.streams()] == [5] * 6


def test_a_stream_that_never_pauses_does_not_keep_others_on_disk(clf) -> None:
    stop = threading.Event()
    with engine(clf, streams_budget=ONE_STREAM) as where:

        def flood() -> None:
            seed = 0
            while not stop.is_set():
                tickets = [where.submit("loud", sent(seed + n)) for n in range(8)]
                seed += len([ticket.future.result(PATIENCE) for ticket in tickets])

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            for seed in range(5):
                assert ask(where, "quiet", seed)
        finally:
            stop.set()
            thread.join(PATIENCE)


def test_the_budget_holds_with_many_streams() -> None:
    """As many streams as a large site has, with memory for some of them."""
    streams, budget = (10_000, 2**30) if RUN_SLOW_TESTS else (100, 2**19)
    own, most = testing.small_classifier(), 0
    with engine(
        own, streams_budget=budget, stream_memory=2**18, parameters={}, max_queue_images=20_000
    ) as where:
        for seed in range(2):
            tickets = [where.submit(f"camera-{n}", sent(seed)) for n in range(streams)]
            for ticket in tickets:
                assert ticket.future.result(PATIENCE)[0].result.adapted
                most = max(most, where._residency.bytes)
        found = where.statistics()
        listed = where.streams(limit=streams + 1)
        assert len(listed) == found.streams == streams
        assert {info.images for info in listed} == {2}
        assert found.resident_streams == sum(info.resident for info in listed) < streams
        assert found.resident_bytes == sum(info.memory_bytes for info in listed)
        assert found.resident_bytes <= budget
        assert most <= 1.1 * budget  # within a batch, memories may grow
        assert found.parked >= streams // 2
        assert found.store_failures == 0


def test_restarted_engines_continue_where_they_were_closed(clf, tmp_path: Path) -> None:
    whole, states, _ = run(clf, "ab", 6)
    found = []
    for n in range(6):
        with engine(clf, invariant=True, state=str(tmp_path)) as where:
            assert [info.name for info in where.streams()] == (["a", "b"] if n else [])
            assert [info.images for info in where.streams()] == ([n, n] if n else [])
            assert not any(info.resident for info in where.streams())
            found += [ask(where, name, 10 * place + 100 * n)[0] for place, name in enumerate("ab")]
            again = {name: state(where, name) for name in "ab"}
    for one, other in zip(found, whole, strict=True):
        assert one.result == other.result
    for name in "ab":
        assert_same_state(again[name], states[name])
    assert len({answer.id for answer in found}) == len(found)


def test_a_state_in_a_bucket(clf) -> None:
    pytest.importorskip("fsspec")
    url = f"memory://streams-of-test-{os.getpid()}"
    with engine(clf, state=url) as where:
        ask(where, "a", 1, 2)
        where.set_classes("b" if where.create_stream("b")[1] else "", ["cat", "dog"])
        ask(where, "b", 1)
    with engine(clf, state=url) as where:
        assert [(info.name, info.images) for info in where.streams()] == [("a", 2), ("b", 1)]
        assert where.stream("b").classes == ("cat", "dog")
        ask(where, "a", 3)
        assert where.stream("a").entries == 3
        where.delete("a")
    with engine(clf, state=url) as where:
        assert [info.name for info in where.streams()] == ["b"]


def test_a_stream_that_another_process_holds(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path)) as one, engine(clf, state=str(tmp_path)) as other:
        ask(one, "a", 1)
        with pytest.raises(StreamElsewhereError, match="'a' is in use: process"):
            ask(other, "a", 2)
        with pytest.raises(StreamElsewhereError):
            other.reset("a")
        ask(other, "b", 1)
        one.close()
        assert ask(other, "a", 2)[0].result.state_version == 2


def test_classes_that_another_process_has_set_are_seen(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path)) as one, engine(clf, state=str(tmp_path)) as other:
        ask(one, "a", 1)
        one.close()
        ask(other, "a", 1)
        other.set_classes("a", ["cat", "dog"])
        other.close()
        with engine(clf, state=str(tmp_path)) as third:
            assert ask(third, "a", 2)[0].result.label in ("cat", "dog")


@pytest.mark.parametrize("damage", ["cut", "flip", "facts", "all"])
def test_damage_never_keeps_a_stream_from_working(clf, tmp_path: Path, damage: str) -> None:
    with engine(clf, state=str(tmp_path), save_every="batch") as where:
        for seed in range(6):
            ask(where, "a", seed)
    folder = tmp_path / "streams" / "a"
    segments = sorted(folder.glob("segment-*.log"))
    damaged = folder / "stream.json" if damage == "facts" else segments[0 if damage == "flip" else -1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content if damage == "flip" else content[:-40])
    if damage == "all":
        for segment in segments:
            segment.write_bytes(b"junk")
    with engine(clf, state=str(tmp_path)) as where:
        (answer,) = ask(where, "a", 7)
        info = where.stream("a")
    assert answer.result.adapted
    assert (info.recovered is None) == (damage == "facts")
    assert answer.result.state_version == {"cut": 6, "flip": 7, "facts": 7, "all": 1}[damage]
    assert info.images == 7


def test_the_state_of_another_model_is_refused_and_left_alone(clf, tmp_path: Path) -> None:
    other_clf = testing.small_classifier(seed=1)
    with engine(clf, state=str(tmp_path)) as where:
        ask(where, "a", 1)
    with engine(other_clf, state=str(tmp_path)) as where:
        with pytest.raises(BadRequestError, match="stream 'a' cannot be used: the store cannot be used"):
            ask(where, "a", 2)
        ask(where, "b", 1)
        assert not where.stream("a").resident
    with engine(clf, method="tent", state=str(tmp_path)) as where, pytest.raises(BadRequestError):
        ask(where, "a", 2)
    with engine(clf, state=str(tmp_path)) as where:
        assert ask(where, "a", 2)[0].result.state_version == 2


def test_a_state_with_another_memory_is_taken_over(clf, tmp_path: Path) -> None:
    """An operator gives streams less or more memory than before."""
    for number, memory in enumerate((2**18, 2**17, 2**20)):
        with engine(clf, parameters={}, stream_memory=memory, state=str(tmp_path)) as where:
            assert ask(where, "a", number)[0].result.state_version == number + 1


def test_the_number_of_streams_is_limited(clf) -> None:
    with engine(clf, max_streams=2) as where:
        ask(where, "a", 1)
        where.create_stream("b")
        for attempt in (lambda: where.submit("c", sent(1)), lambda: where.create_stream("c")):
            with pytest.raises(BadRequestError, match="there are 2 streams already"):
                attempt()
        where.delete("a")
        assert ask(where, "c", 1)


def test_streams_of_other_processes_are_listed(clf, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("ramen.serve.engine.stream_table._LOOK_EVERY", 0.0)
    with (
        engine(clf, state=str(tmp_path)) as one,
        engine(clf, state=str(tmp_path), create_on_use=False) as other,
    ):
        ask(one, "a", 1)
        ask(one, "b", 1)
        assert [info.name for info in other.streams()] == ["a", "b"]
        one.delete("a")
        assert [info.name for info in other.streams()] == ["b"]
        ask(one, "c", 1)
        one.close()
        assert ask(other, "c", 2)[0].result.state_version == 2


def test_few_stores_are_open_at_a_time(clf, monkeypatch) -> None:
    """Each needs a file, and a process may have so many and no more."""
    monkeypatch.setattr("ramen.serve.engine.stream_places._MOST_OPEN", 3)
    with engine(clf) as where:
        for name in "abcdef":
            ask(where, name, 1)
            assert where.statistics().resident_streams <= 3
        assert ask(where, "a", 2)[0].result.state_version == 2
