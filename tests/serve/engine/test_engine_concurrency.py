"""Many threads at once: no answer is lost or given twice, and every image is learned from once."""

import threading
import time

import pytest

from ramen.client.operations import ServerOverloadedError
from tests.helpers.sent_images import sent
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.serve.engine.engines import PATIENCE, ask, engine

THREADS = 64
REQUESTS = 1000 if RUN_SLOW_TESTS else 4
ROOMY = {"capacity": THREADS * 1000, "topk": 2, "beta": 5.0, "lr": 1e-2, "codec": "sign"}  # drops nothing


@pytest.mark.parametrize(("invariant", "overlap"), [(False, False), (True, False), (False, True)])
def test_no_answer_is_lost_or_doubled(clf, invariant: bool, overlap: bool) -> None:
    names = ["a", "b", "c", "d", "e"]
    found: list[tuple[str, str, str]] = []
    failed: list[BaseException] = []

    def client(number: int) -> None:
        try:
            for request in range(REQUESTS):
                name, key = names[(number + request) % len(names)], number * REQUESTS + request
                (answer,) = where.submit(name, sent(key)).future.result(PATIENCE)
                assert answer.result.error is None
                found.append((answer.stream, answer.result.key, answer.id))
                assert answer.stream == name
                assert answer.result.key == str(key)
        except BaseException as error:
            failed.append(error)

    with engine(clf, parameters=ROOMY, invariant=invariant, overlap=overlap, max_batch=32) as where:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not failed
        assert not any(thread.is_alive() for thread in threads)
        assert len(found) == THREADS * REQUESTS
        assert len({key for _, key, _ in found}) == len({number for _, _, number in found}) == len(found)
        for name in names:
            answered = sum(owner == name for owner, _, _ in found)
            info = where.stream(name)
            assert info.images == info.entries == answered
        assert where.statistics().images == len(found)


def test_overload_is_refused_and_the_engine_recovers(clf) -> None:
    accepted, refused, slow = [], [], 0.0
    with engine(clf, max_queue_images=16, max_batch=4) as where:
        ask(where, "a", 0)
        for seed in range(200):
            started = time.monotonic()
            try:
                accepted.append(where.submit("a", sent(seed)))
            except ServerOverloadedError as error:
                refused.append(error.retry_after)
            slow = max(slow, time.monotonic() - started)
            assert where.statistics().waiting_images <= 16
        answered = [ticket.future.result(PATIENCE) for ticket in accepted]
        assert refused
        assert all(0.1 <= seconds <= 30 for seconds in refused)
        assert slow < 5  # it never waits
        assert where.stream("a").images == len(answered) + 1
        assert len(ask(where, "a", 1)) == 1
        assert where.statistics().overloaded == len(refused)


def test_a_flood_in_one_stream_does_not_starve_another(clf) -> None:
    with engine(clf, max_batch=4, max_queue_images=300) as where:
        flood = [where.submit("loud", sent(seed)) for seed in range(200)]
        quiet = where.submit("quiet", sent(1))
        quiet.future.result(PATIENCE)
        assert sum(not ticket.future.done() for ticket in flood) > 100
        for ticket in flood:
            ticket.cancel()


@pytest.mark.parametrize("overlap", [False, True])
def test_streams_are_managed_while_images_come(clf, overlap: bool) -> None:
    """Resets, snapshots and other classes in the middle of traffic; then all is as it should be."""
    stop, failed, answered = threading.Event(), [], []

    def client(number: int) -> None:
        try:
            seed = number
            while not stop.is_set():
                ask(where, f"stream-{number % 3}", seed)
                answered.append(seed)
                seed += 100
        except BaseException as error:
            failed.append(error)

    with engine(clf, overlap=overlap, max_batch=2) as where:
        for number in range(3):
            where.create_stream(f"stream-{number}")
        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for number in range(12):
            where.reset("stream-0")
            assert where.snapshot("stream-1").name == "stream-1"
            where.set_classes("stream-2", [f"thing {number}", "other"])
            assert len(where.streams()) == 3
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert not failed
        assert where.stream("stream-2").classes == ("thing 11", "other")
        assert where.statistics().fallbacks == 0
        where.reset("stream-0")
        ask(where, "stream-0", 1, 2)
        assert where.stream("stream-0").entries == where.stream("stream-0").images == 2
