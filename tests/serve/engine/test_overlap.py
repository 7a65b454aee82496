"""A batch is begun while the one before is being answered: the same answers, the same states."""

import threading
from pathlib import Path

import pytest

from ramen.state import open_store
from tests.helpers.sent_images import sent
from tests.serve.engine.engines import PATIENCE, engine, make


def answers(clf, *, overlap: bool, state: Path | None = None, **settings) -> list[tuple[object, ...]]:
    """Of two streams with batches that are full, and one that is not."""
    given = {"overlap": overlap, "max_batch": 4, "state": None if state is None else str(state), **settings}
    with engine(clf, **given) as where:
        requests = [("a" if n % 3 else "b", range(4 * n, 4 * n + 4)) for n in range(12)] + [("a", [77])]
        tickets = [where.submit(name, sent(*seeds)) for name, seeds in requests]
        found = [answer for ticket in tickets for answer in ticket.future.result(PATIENCE)]
    return [(answer.stream, answer.result, answer.probabilities.tolist()) for answer in found]


@pytest.mark.parametrize("save_every", ["batch", "0.01s"])
def test_nothing_changes(clf, tmp_path: Path, save_every: str) -> None:
    expected = answers(clf, overlap=False, state=tmp_path / "one", save_every=save_every)
    found = answers(clf, overlap=True, state=tmp_path / "two", save_every=save_every)
    assert found == expected
    states = []
    for folder in ("one", "two"):
        method = make(clf)
        store = open_store(tmp_path / folder / "streams" / "a", method)
        assert store.recovered is None
        store.close()
        states.append(method.state_dict())
    assert states[0]["images_seen"] == 4 * 8 + 1
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


class Watched:
    """An engine whose batches are finished only when that is allowed."""

    def __init__(self, where) -> None:
        self.begun: list[int] = []  # images
        self.allowed = threading.Semaphore(0)
        self.came = threading.Semaphore(0)
        begin, finish = where.engine._computing._begin, where.engine._computing._finish

        def watched_begin(parts) -> float:
            self.begun.append(sum(map(len, parts)))
            self.came.release()
            return begin(parts)

        def watched_finish(parts) -> None:
            assert self.allowed.acquire(timeout=PATIENCE)
            finish(parts)

        where.engine._computing._begin, where.engine._computing._finish = watched_begin, watched_finish

    def wait(self, batches: int) -> None:
        for _ in range(batches):
            assert self.came.acquire(timeout=PATIENCE)

    def nothing_comes(self) -> bool:
        return not self.came.acquire(timeout=0.2)


def test_one_batch_ahead_and_no_more(clf) -> None:
    with engine(clf, overlap=True, max_batch=4) as where:
        where.create_stream("a")
        watched = Watched(where)
        tickets = [where.submit("a", sent(*range(4 * n, 4 * n + 4))) for n in range(3)]
        watched.wait(2)
        assert watched.nothing_comes()
        watched.allowed.release()
        tickets[0].future.result(PATIENCE)
        watched.wait(1)
        assert [ticket.future.done() for ticket in tickets] == [True, False, False]
        watched.allowed.release(10)
        assert [answer.result.state_version for answer in tickets[2].future.result(PATIENCE)] == [12] * 4


def test_batches_that_are_not_full_wait_for_more(clf) -> None:
    with engine(clf, overlap=True, max_batch=4, max_delay_ms=0.0) as where:
        where.create_stream("a")
        watched = Watched(where)
        tickets = [where.submit("a", sent(0))]
        watched.wait(1)
        tickets += [where.submit("a", sent(n)) for n in (1, 2)]
        assert watched.nothing_comes()
        watched.allowed.release(10)
        for ticket in tickets:
            ticket.future.result(PATIENCE)
        assert watched.begun == [1, 2]


def test_a_stream_is_left_alone_while_batches_of_it_are_answered(clf) -> None:
    with engine(clf, overlap=True, max_batch=4) as where:
        where.create_stream("a")
        watched = Watched(where)
        tickets = [where.submit("a", sent(*range(4 * n, 4 * n + 4))) for n in range(3)]
        watched.wait(2)
        resetting = threading.Thread(target=where.reset, args=("a",))
        resetting.start()
        resetting.join(0.2)
        assert resetting.is_alive()
        watched.allowed.release(2)
        for ticket in tickets[:2]:
            ticket.future.result(PATIENCE)
        watched.allowed.release(10)
        resetting.join(PATIENCE)
        assert not resetting.is_alive()
        # the reset came before the third batch
        assert [answer.result.state_version for answer in tickets[2].future.result(PATIENCE)] == [4] * 4


def test_a_stream_in_two_batches_is_not_put_to_disk_between_them(clf) -> None:
    """Although there is too little memory for it, and it is the one that was used least recently."""
    with engine(clf, overlap=True, max_batch=4, streams_budget=1) as where:
        tickets = [
            where.submit(name, sent(*range(4 * n, 4 * n + 4))) for n in range(6) for name in ("a", "b")
        ]
        found = [ticket.future.result(PATIENCE) for ticket in tickets]
    for first, name in enumerate(("a", "b")):
        versions = [answers[0].result.state_version for answers in found[first::2]]
        assert versions == [4 * n for n in range(1, 7)], name


def test_not_if_each_batch_has_to_be_on_the_disk_first(clf, tmp_path: Path) -> None:
    with engine(clf, overlap=True, max_batch=4, save_every="batch", state=str(tmp_path)) as where:
        where.create_stream("a")
        watched = Watched(where)
        tickets = [where.submit("a", sent(*range(4 * n, 4 * n + 4))) for n in range(2)]
        watched.wait(1)
        assert watched.nothing_comes()
        watched.allowed.release(10)
        for ticket in tickets:
            ticket.future.result(PATIENCE)
