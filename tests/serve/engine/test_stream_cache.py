"""Streams that do not fit into memory go to disk, and come back as if they had always been there."""

import itertools
import os
import tempfile
import threading
import time
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ramen import testing
from ramen.client.operations import (
    DeadlineExceededError,
    InvalidRequestError,
    NoSuchStreamError,
    SentImage,
    ServerUnavailableError,
)
from ramen.state import open_store
from ramen.utils.files import LockedError
from tests.helpers.photos import encoded, photo
from tests.helpers.sent_images import sent
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.serve.engine.engines import PATIENCE, ask, engine, make
from tests.state.streams import assert_same_state

ONE_STREAM = 1  # a budget that no stream fits into: then there is one at a time


def state(where, name: str) -> dict:
    engine = where.engine

    async def loaded() -> dict:
        stream = engine._streams.find(name)
        async with engine._scheduler.held(stream):
            return (await engine._cache.load(stream)).method.state_dict()

    return where.run(loaded())


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
                most = max(most, where.engine._cache.bytes)
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


def test_a_state_folder_has_one_owner(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path)) as one:
        ask(one, "a", 1)
        with pytest.raises(LockedError, match=rf"process {os.getpid()} .*{tmp_path}"):
            engine(clf, state=str(tmp_path))
    with engine(clf, state=str(tmp_path)) as other:
        assert ask(other, "a", 2)[0].result.state_version == 2


def test_a_stream_that_another_program_uses(clf, tmp_path: Path) -> None:
    folder = tmp_path / "streams" / "a"
    with engine(clf, state=str(tmp_path)) as where:
        with (
            closing(open_store(folder, make(clf))),
            pytest.raises(ServerUnavailableError, match="'a' is in use: process"),
        ):
            ask(where, "a", 2)
        assert ask(where, "a", 2)[0].result.state_version == 1


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
    assert info.recovered is not None
    assert answer.result.state_version == {"cut": 6, "flip": 7, "facts": 7, "all": 1}[damage]
    assert info.images == 7


@pytest.mark.parametrize("damage", ["number", "levels", "folder", "flip", "gone"])
@pytest.mark.parametrize("classes", [None, ["cat", "dog"]])
def test_damaged_facts_are_listed_harm_no_other_and_keep_what_was_learned(
    clf, tmp_path: Path, damage: str, classes: list[str] | None
) -> None:
    with engine(clf, state=str(tmp_path)) as where:
        where.create_stream("a", classes)
        for name, seed in (("a", 1), ("a", 2), ("b", 3)):
            ask(where, name, seed)
    facts = tmp_path / "streams" / "a" / "stream.json"
    content = facts.read_text()
    facts.unlink()
    if damage == "folder":
        facts.mkdir()
    elif damage == "flip":
        facts.write_text(content.replace("images", "imaget", 1))
    elif damage != "gone":
        facts.write_text("1e999" if damage == "number" else "[" * 300_000)
    with engine(clf, state=str(tmp_path)) as where:
        damaged, sound = where.streams()
        assert (damaged.name, damaged.images, damaged.classes) == ("a", 0, tuple(classes or clf.classes))
        assert "stream.json" in damaged.recovered
        assert (sound.name, sound.images, sound.recovered) == ("b", 1, None)
        assert ask(where, "a", 3)[0].result.state_version == 3
        assert where.stream("a").recovered == damaged.recovered
        where.reset("a")
        assert where.stream("a").recovered is None
    with engine(clf, state=str(tmp_path)) as where:
        assert [info.recovered for info in where.streams()] == [None, None]


@pytest.mark.parametrize("damage", ["deleted", "emptied", "replaced"])
def test_segments_that_have_vanished_are_noticed(clf, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "streams" / "a"
    with engine(clf, state=str(tmp_path)) as where:
        ask(where, "a", 1)
    earlier = {path: path.read_bytes() for path in folder.glob("segment-*.log")}
    with engine(clf, state=str(tmp_path)) as where:
        for seed in (2, 3, 4):
            ask(where, "a", seed)
    for path in folder.glob("segment-*.log"):
        path.write_bytes(b"") if damage == "emptied" else path.unlink()
    if damage == "replaced":
        for path, content in earlier.items():
            path.write_bytes(content)
    with engine(clf, state=str(tmp_path)) as where:
        version = ask(where, "a", 5)[0].result.state_version
        assert version == (2 if damage == "replaced" else 1)
        assert "of 4 saved images" in where.stream("a").recovered
    with engine(clf, state=str(tmp_path)) as where:  # said once
        ask(where, "a", 6)
        assert where.stream("a").recovered is None


def test_a_state_that_cannot_be_used_can_be_reset(clf, tmp_path: Path) -> None:
    with engine(testing.small_classifier(seed=1), state=str(tmp_path)) as where:
        ask(where, "a", 1)
    with engine(clf, state=str(tmp_path)) as where:
        with pytest.raises(InvalidRequestError):
            ask(where, "a", 2)
        assert where.reset("a").images == 0
        assert ask(where, "a", 2)[0].result.state_version == 1


def test_a_request_that_fails_creates_no_stream(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path), max_delay_ms=200.0) as where:
        (answer,) = where.submit("a", [SentImage("x", b"junk")]).future.result(PATIENCE)
        assert answer.result.error is not None
        slow = SentImage("y", encoded(photo(1, (3000, 3000))))
        where.submit("b", [slow]).cancel()
        with pytest.raises(DeadlineExceededError):
            where.submit("c", [slow], timeout=0.0).future.result(PATIENCE)
        assert where.streams() == []
        assert where.statistics().streams == 0
        ask(where, "a", 1)
        assert [info.name for info in where.streams()] == ["a"]
    assert [path.name for path in (tmp_path / "streams").iterdir()] == ["a"]


def test_the_state_of_another_model_is_refused_and_left_alone(clf, tmp_path: Path) -> None:
    other_clf = testing.small_classifier(seed=1)
    with engine(clf, state=str(tmp_path)) as where:
        ask(where, "a", 1)
    with engine(other_clf, state=str(tmp_path)) as where:
        with pytest.raises(InvalidRequestError, match="stream 'a' cannot be used: the store cannot be used"):
            ask(where, "a", 2)
        ask(where, "b", 1)
        assert not where.stream("a").resident
    with engine(clf, method="tent", state=str(tmp_path)) as where, pytest.raises(InvalidRequestError):
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
            with pytest.raises(InvalidRequestError, match="there are 2 streams already"):
                attempt()
        where.delete("a")
        assert ask(where, "c", 1)


def test_few_stores_are_open_at_a_time(clf, monkeypatch) -> None:
    """Each needs a file, and a process may have so many and no more."""
    monkeypatch.setattr("ramen.serve.engine.stream._MOST_OPEN", 3)
    with engine(clf) as where:
        for name in "abcdef":
            ask(where, name, 1)
            assert where.statistics().resident_streams <= 3
        assert ask(where, "a", 2)[0].result.state_version == 2


class Cached(RuleBasedStateMachine):
    """Streams that come and go, against a model: how many images each has learned from."""

    clf: Any = None

    @initialize(most=st.integers(1, 3))
    def begin(self, most: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.budget = most * Cached.bytes_of_one()
        self.learned: dict[str, int] = {}
        self.seeds = itertools.count()
        self.start()

    @staticmethod
    @lru_cache
    def bytes_of_one() -> int:
        with engine(Cached.clf) as where:
            return where.create_stream("a")[0].memory_bytes

    def start(self) -> None:
        state = str(Path(self.folder.name) / "state")
        self.where = engine(Cached.clf, state=state, streams_budget=self.budget, max_delay_ms=0.0)

    def teardown(self) -> None:
        self.where.close()
        self.folder.cleanup()

    @rule(names=st.lists(st.sampled_from("abcd"), min_size=1, max_size=6))
    def ask(self, names: list[str]) -> None:
        tickets = [(name, self.where.submit(name, sent(next(self.seeds)))) for name in names]
        for name, ticket in tickets:
            assert ticket.future.result(PATIENCE)[0].result.adapted
            self.learned[name] = self.learned.get(name, 0) + 1
        versions = {name: ticket.future.result()[0].result.state_version for name, ticket in tickets}
        assert versions == {name: self.learned[name] for name in versions}

    @rule(name=st.sampled_from("abcd"), how=st.sampled_from(["reset", "delete", "snapshot", "create_stream"]))
    def manage(self, name: str, how: str) -> None:
        if how != "create_stream" and name not in self.learned:
            with pytest.raises(NoSuchStreamError):
                getattr(self.where, how)(name)
            return
        getattr(self.where, how)(name)
        if how == "delete":
            del self.learned[name]
        elif how == "reset" or name not in self.learned:
            self.learned[name] = 0

    @rule()
    def restart(self) -> None:
        self.where.close()
        self.start()

    @invariant()
    def all_is_known(self) -> None:
        listed = self.where.streams()
        assert {info.name: info.images for info in listed} == self.learned
        assert not any(info.recovered for info in listed)
        until = time.monotonic() + PATIENCE  # streams are evicted beside the answers
        while (found := self.where.statistics()).resident_streams > 1 and found.resident_bytes > self.budget:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert found.store_failures == 0


def test_it_behaves_like_the_model(clf) -> None:
    Cached.clf = clf
    given = settings(
        max_examples=5, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Cached, settings=given)
