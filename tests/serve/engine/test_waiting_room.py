"""The room by itself: streams are names, nothing is computed."""

import threading
import time
import weakref
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

from ramen.serve.decoders import DecodedSource
from ramen.serve.engine.answers import SentImage
from ramen.serve.engine.errors import DeadlineError, OverloadedError, StoppingError
from ramen.serve.engine.served_stream import ServedStream
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.engine.ticket import Ticket
from ramen.serve.engine.waiting_room import WaitingRoom

RESIDENT: Any = object()
PATIENCE = 60


def room(rate: float = 0.0, step_seconds: float = 0.0, **settings: Any) -> WaitingRoom:
    chosen = EngineSettings(**{"max_delay_ms": 0.0, "max_batch": 4, **settings})
    return WaitingRoom(chosen, lambda: rate, lambda: step_seconds)


def stream(name: str = "a", *, resident: bool = True) -> ServedStream:
    made = ServedStream(name)
    made.resident = RESIDENT if resident else None
    return made


def admit(
    where: WaitingRoom,
    owner: ServedStream,
    images: int = 1,
    *,
    decoded: bool = True,
    **more: Any,
) -> Ticket:
    sent = [SentImage(f"{owner.name}{n}", bytes(10)) for n in range(images)]
    ticket = Ticket(owner, sent, more.get("timeout"), where)
    where.admit(ticket)
    if decoded:
        decode(where, ticket)
    return ticket


def decode(where: WaitingRoom, ticket: Ticket) -> None:
    where.decoded(
        ticket, [DecodedSource(image.key, np.zeros((3, 2, 2), np.uint8)) for image in ticket.images]
    )


def take(where: WaitingRoom) -> list[Ticket]:
    batch = where.take()
    assert batch is not None
    return batch


def test_whole_tickets_in_the_order_of_their_stream() -> None:
    where, a = room(), stream()
    first, second, third = (admit(where, a, images) for images in (2, 1, 3))
    batch = take(where)
    assert batch == [first, second]  # the third would make six
    where.finish(batch)
    assert take(where) == [third]


def test_a_stream_whose_first_ticket_is_not_decoded_waits_and_others_go_on() -> None:
    where, a, b = room(), stream("a"), stream("b")
    first = admit(where, a, decoded=False)
    second, other = admit(where, a), admit(where, b)
    batch = take(where)
    assert batch == [other]
    where.finish(batch)
    decode(where, first)
    assert take(where) == [first, second]


def test_streams_that_are_not_in_memory_or_busy_wait() -> None:
    where, a, b, c = room(), stream("a", resident=False), stream("b"), stream("c")
    waiting, answered, other = admit(where, a), admit(where, b), admit(where, c)
    assert where.try_hold(c)
    batch = take(where)
    assert batch == [answered]
    admit(where, b)
    a.resident = RESIDENT
    where.stream_opened()
    assert take(where) == [waiting]  # b is being answered, c is held
    where.release(c)
    assert take(where) == [other]


def test_streams_take_turns() -> None:
    where = room()
    loud, quiet = stream("loud"), [stream(f"quiet {n}") for n in range(3)]
    flood = [admit(where, loud) for _ in range(100)]
    others = [admit(where, one) for one in quiet for _ in range(2)]
    served: list[Ticket] = []
    for _ in range(2):
        batch = take(where)
        served += batch
        where.finish(batch)
    assert set(others) <= set(served)
    assert [ticket for ticket in served if ticket.stream is loud] == flood[: len(served) - len(others)]


def test_a_large_ticket_is_not_overtaken_for_ever() -> None:
    where, small, large = room(), stream("small"), stream("large")
    for _ in range(3):
        admit(where, small)
    wide = admit(where, large, 4)
    batch = take(where)
    assert {ticket.stream for ticket in batch} == {small}
    where.finish(batch)
    admit(where, small)
    assert take(where) == [wide]


def test_a_batch_is_formed_when_it_is_full_or_the_first_ticket_has_waited_long_enough() -> None:
    where, a, b = room(max_delay_ms=200.0), stream("a"), stream("b")
    started = time.monotonic()
    lone = admit(where, a)
    assert take(where) == [lone]
    assert time.monotonic() - started >= 0.2
    where.finish([lone])
    full = room(max_delay_ms=1000 * PATIENCE)
    tickets = [admit(full, one, 2) for one in (a, b)]
    assert take(full) == tickets  # at once: the test would time out


def test_an_empty_room_waits_for_a_ticket() -> None:
    where, taken = room(), []
    thread = threading.Thread(target=lambda: taken.extend(take(where)))
    thread.start()
    ticket = admit(where, stream())
    thread.join(PATIENCE)
    assert taken == [ticket]


# -- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"max_queue_images": 3}, {"max_queue_bytes": 39}])
def test_what_does_not_fit_is_refused_at_once_until_something_is_answered(limit: dict[str, int]) -> None:
    where, a = room(**limit), stream()
    for _ in range(3):
        admit(where, a)
    with pytest.raises(OverloadedError, match=r"too many images are waiting \(3, 30 bytes\)"):
        admit(where, a)
    batch = take(where)
    with pytest.raises(OverloadedError):  # what is being answered counts
        admit(where, a)
    assert (where.images, where.bytes, where.overloaded) == (3, 30, 2)
    where.finish(batch)
    admit(where, a)
    assert (where.images, where.bytes) == (1, 10)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 1.0), (10.0, 0.4), (1e6, 0.1), (0.01, 30.0)])
def test_retry_after_follows_the_rate(rate: float, expected: float) -> None:
    where = room(rate, max_queue_images=4)
    admit(where, stream(), 4)
    with pytest.raises(OverloadedError) as caught:
        admit(where, stream("a"))
    assert caught.value.retry_after == pytest.approx(expected)


def test_the_limit_is_exact_when_many_threads_ask_at_once() -> None:
    where = room(max_queue_images=100)
    admitted, refused = [], []
    start = threading.Barrier(32)

    def ask(number: int) -> None:
        start.wait(PATIENCE)
        for _ in range(20):
            try:
                admitted.append(admit(where, shared, decoded=False))
            except OverloadedError:
                refused.append(number)
            assert where.images <= 100

    shared = stream("shared")
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (len(admitted), len(refused), where.images) == (100, 540, 100)


def test_when_the_room_is_full_the_longest_line_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramen.serve.engine.giving_way._REFUSED_WITHIN", PATIENCE)
    where, loud, quiet = room(max_queue_images=6), stream("loud"), stream("quiet")
    flood = [admit(where, loud) for _ in range(6)]
    late = [admit(where, quiet) for _ in range(3)]
    assert [ticket.future.done() for ticket in flood] == [False] * 3 + [True] * 3
    assert all(isinstance(ticket.future.exception(), OverloadedError) for ticket in flood[3:])
    with pytest.raises(OverloadedError):  # now both are as long
        admit(where, quiet)
    with pytest.raises(OverloadedError):
        admit(where, loud)
    assert (where.images, where.overloaded) == (6, 5)
    assert take(where) == [flood[0], late[0], flood[1], late[1]]


def test_what_has_waited_does_not_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that comes late is worth nothing."""
    monkeypatch.setattr("ramen.serve.engine.giving_way._REFUSED_WITHIN", -1.0)
    where, loud, quiet = room(max_queue_images=6), stream("loud"), stream("quiet")
    flood = [admit(where, loud) for _ in range(6)]
    with pytest.raises(OverloadedError):
        admit(where, quiet)
    assert not any(ticket.future.done() for ticket in flood)


def test_nobody_gives_way_to_what_would_not_fit_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramen.serve.engine.giving_way._REFUSED_WITHIN", PATIENCE)
    where, loud, quiet = room(max_queue_images=4), stream("loud"), stream("quiet")
    flood = [admit(where, loud) for _ in range(4)]
    with pytest.raises(OverloadedError):
        admit(where, quiet, 3)
    assert not any(ticket.future.done() for ticket in flood)


# -- tickets that leave unanswered ------------------------------------------------------------------


def test_cancelled_and_expired_tickets_leave_unless_they_are_being_answered() -> None:
    where, a = room(), stream()
    first, second, third = (admit(where, a) for _ in range(3))
    assert second.cancel()
    assert third.expire()
    assert not second.cancel()
    assert isinstance(second.future.exception(), CancelledError)
    assert isinstance(third.future.exception(), DeadlineError)
    batch = take(where)
    assert batch == [first]
    assert not first.cancel()
    assert not first.expire()
    where.finish(batch)
    assert (where.images, where.bytes, where.cancelled, where.expired) == (0, 0, 1, 1)


def test_a_future_cannot_be_cancelled_behind_the_back_of_the_room() -> None:
    where = room()
    assert not admit(where, stream()).future.cancel()


def test_deadlines_are_checked_when_a_batch_is_formed() -> None:
    where, a = room(), stream()
    late, punctual = admit(where, a, timeout=0.0), admit(where, a, timeout=PATIENCE)
    assert take(where) == [punctual]
    assert isinstance(late.future.exception(), DeadlineError)
    assert where.expired == 1


def test_what_would_be_answered_too_late_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches of 0.5 s and 2 s for each request, nothing is begun after 1.5 s."""
    where, a = room(step_seconds=0.5), stream()
    start = time.monotonic()
    hopeless = admit(where, a, timeout=2.0)
    punctual = admit(where, a, timeout=2.2)
    monkeypatch.setattr(time, "monotonic", lambda: start + 1.6)
    assert take(where) == [punctual]
    assert isinstance(hopeless.future.exception(), DeadlineError)
    assert where.expired == 1


def test_a_request_that_nothing_delays_is_begun_however_long_a_batch_takes() -> None:
    where = room(step_seconds=1000.0)
    ticket = admit(where, stream(), timeout=PATIENCE)
    assert take(where) == [ticket]


def test_a_ticket_expires_though_nothing_else_happens() -> None:
    where = room()
    taking = threading.Thread(target=where.take, daemon=True)
    taking.start()
    ticket = admit(where, stream(resident=False), timeout=0.05)
    assert isinstance(ticket.future.exception(PATIENCE), DeadlineError)
    where.close()
    taking.join(PATIENCE)


def test_answered_tickets_are_not_kept_until_their_deadlines() -> None:
    where, a = room(max_batch=32, max_queue_images=10_000), stream()
    waiting = admit(where, stream("slow"), decoded=False, timeout=3600)
    answered: list[weakref.ref[Ticket]] = []
    for _ in range(100):
        answered += [weakref.ref(admit(where, a, timeout=60)) for _ in range(32)]
        batch = take(where)
        where.leave(batch)
        where.finish(batch)
        del batch
    kept = sum(ticket() is not None for ticket in answered)
    assert kept <= 300  # of 3,200
    # those that wait are still found, however often the others were forgotten
    brief = admit(where, stream("brief"), decoded=False, timeout=0.01)
    time.sleep(0.02)
    admit(where, a)
    take(where)
    assert isinstance(brief.future.exception(PATIENCE), DeadlineError)
    assert not waiting.future.done()


def test_withdrawing_all_tickets_of_a_stream() -> None:
    where, a, b = room(), stream("a"), stream("b")
    mine, other = [admit(where, a) for _ in range(3)], admit(where, b)
    where.withdraw_all(a, KeyError("gone"))
    assert all(isinstance(ticket.future.exception(), KeyError) for ticket in mine)
    assert not where.has_tickets(a)
    assert take(where) == [other]


# -- holding ----------------------------------------------------------------------------------------


def test_whoever_wants_to_hold_a_stream_comes_before_its_next_batch() -> None:
    where, a = room(max_batch=1), stream()
    first, second = admit(where, a), admit(where, a)
    batch = take(where)
    assert batch == [first]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with where.held(a):
            held.set()
            done.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert not held.wait(0.05)
    other = admit(where, stream("b"))
    where.finish(batch)
    assert held.wait(PATIENCE)
    assert not where.try_hold(a)
    assert take(where) == [other]
    done.set()
    thread.join(PATIENCE)
    assert take(where) == [second]


def test_a_closed_room_gives_out_what_it_has_without_delay() -> None:
    where = room(max_delay_ms=1000 * PATIENCE)
    ticket = admit(where, stream())
    where.close()
    with pytest.raises(StoppingError):
        admit(where, stream())
    batch = take(where)
    assert batch == [ticket]
    where.finish(batch)
    assert where.take() is None


def test_a_refusal_that_is_known_before_a_ticket_is_made() -> None:
    """It is what ``admit`` would do, and counts only if somebody says that it was given."""
    where = room(max_queue_images=4, max_queue_bytes=60)
    loud, quiet = stream("loud"), stream("quiet")
    assert where.refusal(loud, 4, 0) is None
    for _ in range(4):
        admit(where, loud)
    assert where.refusal(loud, 1, 0) is not None
    assert where.refusal(quiet, 1, 0) is None  # the longer line would give way
    assert where.refusal(quiet, 4, 0) is not None
    assert where.refusal(quiet, 1, 61) is not None
    assert where.overloaded == 0
    where.count_refusal()
    assert where.overloaded == 1
    admit(where, quiet)
    assert where.overloaded == 2
    where.close()
    assert where.refusal(loud, 1, 0) is None  # it is closed, which is another reason


def test_refusals_agree_with_what_is_refused() -> None:
    random = np.random.default_rng(0)
    where = room(max_queue_images=12, max_queue_bytes=100)
    streams = [stream(name) for name in "abcd"]
    outcomes = set()
    for _ in range(300):
        owner, images = streams[random.integers(4)], int(random.integers(1, 4))
        expected = where.refusal(owner, images, 10 * images) is not None
        try:
            admit(where, owner, images)
            refused = False
        except OverloadedError:
            refused = True
        assert refused == expected
        outcomes.add(refused)
        if random.random() < 0.2:
            batch = take(where)
            where.finish(batch)
    assert outcomes == {True, False}
