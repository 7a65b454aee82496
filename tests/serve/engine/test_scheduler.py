"""The scheduler by itself: streams are names, nothing is computed."""

import asyncio
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramen.client.operations import DeadlineExceededError, ServerOverloadedError, StoppingError
from ramen.serve.engine.scheduler import Request, Scheduler
from ramen.serve.engine.stream import Stream
from ramen.serve.pixels import DecodedImages
from ramen.serve.settings import EngineSettings

LOADED: Any = object()
PATIENCE = 60


def scheduler(rate: float = 0.0, step_seconds: float = 0.0, **given: Any) -> Scheduler:
    overlapping = given.pop("overlapping", False)
    chosen = EngineSettings(**{"max_delay_ms": 0.0, "max_batch": 4, **given})
    return Scheduler(chosen, lambda: rate, lambda: step_seconds, overlapping=overlapping)


def stream(name: str = "a", *, loaded: bool = True) -> Stream:
    made = Stream(name)
    made.loaded = LOADED if loaded else None
    return made


def put(
    where: Scheduler, owner: Stream, images: int = 1, *, decoded: bool = True, timeout: float | None = None
) -> Request:
    keys = [f"{owner.name}{n}" for n in range(images)]
    request = Request(owner, keys, 10 * images, timeout, asyncio.get_running_loop().create_future())
    where.put(request)
    if decoded:
        decode(where, request)
    return request


def decode(where: Scheduler, request: Request) -> None:
    slots = np.zeros((len(request), 12), np.uint8)
    where.decoded(request, DecodedImages(slots, [(2, 2)] * len(request), {}))


async def finished(where: Scheduler) -> list[Request]:
    """The next batch, answered at once."""
    batch = await where.next_batch()
    where.done(batch)
    where.saved(batch)
    return batch


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), PATIENCE))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@on_a_loop
async def test_a_batch_is_formed_when_it_is_full_or_the_first_request_has_waited_long_enough() -> None:
    where = scheduler(max_delay_ms=200.0)
    started = time.monotonic()
    lone = put(where, stream("a"))
    assert await finished(where) == [lone]
    assert time.monotonic() - started >= 0.2
    full = scheduler(max_delay_ms=1000 * PATIENCE)
    requests = [put(full, stream(name), 2) for name in "ab"]
    assert await full.next_batch() == requests


@on_a_loop
async def test_a_large_request_is_not_overtaken_for_ever() -> None:
    where, small, large = scheduler(), stream("small"), stream("large")
    for _ in range(3):
        put(where, small)
    wide = put(where, large, 4)
    assert {request.stream for request in await finished(where)} == {small}
    put(where, small)
    assert await finished(where) == [wide]


def flooded(where: Scheduler, owner: Stream) -> list[Request]:
    """What a stream can have waiting."""
    found: list[Request] = []
    while where.refusal(owner, 1, 10) is None:
        found.append(put(where, owner))
    with pytest.raises(ServerOverloadedError, match=r"too many images are waiting"):
        put(where, owner)
    return found


@on_a_loop
async def test_a_stream_that_floods_leaves_room_for_others() -> None:
    where, loud = scheduler(max_queue_images=90), stream("loud")
    flood = flooded(where, loud)
    assert len(flood) == pytest.approx(60, abs=1)
    for name in "abc":
        for _ in range(6):
            put(where, stream(name))
    assert not any(request.reply.done() for request in flood)  # nothing that was admitted is shed


@on_a_loop
async def test_bytes_are_limited_like_images() -> None:
    where = scheduler(max_queue_bytes=90)
    flooded(where, stream("loud"))
    assert where.nbytes == pytest.approx(60, abs=10)
    put(where, stream("quiet"))


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 1.0), (10.0, 0.4), (1e6, 0.1), (0.01, 30.0)])
def test_retry_after_follows_the_rate(rate: float, expected: float) -> None:
    async def run() -> None:
        where = scheduler(rate, max_queue_images=4)
        put(where, stream(), 4)
        with pytest.raises(ServerOverloadedError) as caught:
            put(where, stream())
        assert caught.value.retry_after == pytest.approx(expected)

    asyncio.run(run())


@on_a_loop
async def test_what_would_be_answered_too_late_is_not_begun() -> None:
    """Batches take 0.2 s: nothing is begun later than that before its deadline."""
    where = scheduler(step_seconds=0.2)
    hopeless = put(where, stream("a"), timeout=0.3, decoded=False)
    punctual = put(where, stream("b"), timeout=PATIENCE)
    with pytest.raises(DeadlineExceededError):
        await hopeless.reply
    assert hopeless.arrived + 0.14 <= time.monotonic()
    assert await where.next_batch() == [punctual]
    assert where.expired == 1


@on_a_loop
async def test_a_request_that_nothing_delays_is_begun_however_long_a_batch_takes() -> None:
    where = scheduler(step_seconds=1000.0)
    request = put(where, stream(), timeout=PATIENCE)
    assert await where.next_batch() == [request]


@on_a_loop
async def test_answered_requests_are_not_kept_until_their_deadlines() -> None:
    where, a = scheduler(max_batch=32, max_queue_images=100), stream()
    answered: list[weakref.ref[Request]] = []
    for _ in range(20):
        answered += [weakref.ref(put(where, a, timeout=60)) for _ in range(32)]
        await finished(where)
    assert sum(request() is not None for request in answered) <= 32


@on_a_loop
async def test_whoever_wants_to_hold_a_stream_comes_before_its_next_batch() -> None:
    where, a = scheduler(max_batch=1), stream()
    first, second = put(where, a), put(where, a)
    batch = await where.next_batch()
    assert batch == [first]
    held, done = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with where.held(a):
            held.set()
            await done.wait()

    holding = asyncio.create_task(hold())
    await asyncio.sleep(0.01)
    assert not held.is_set()
    where.done(batch)
    where.saved(batch)
    await held.wait()
    assert not where.try_hold(a)
    assert where.take(time.monotonic() + 1) == ([], None)
    done.set()
    await holding
    assert await where.next_batch() == [second]


@on_a_loop
async def test_whoever_no_longer_wants_a_stream_lets_others_have_it() -> None:
    where, a = scheduler(), stream()
    put(where, a)
    batch = await where.next_batch()

    async def hold() -> None:
        async with where.held(a):
            pass

    waiting = [asyncio.create_task(hold()) for _ in range(3)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    where.saved(batch)
    await asyncio.gather(*waiting[1:])
    assert where.try_hold(a)


@on_a_loop
async def test_a_closed_scheduler_gives_out_what_it_has_without_delay() -> None:
    where = scheduler(max_delay_ms=1000 * PATIENCE)
    request = put(where, stream())
    where.close()
    with pytest.raises(StoppingError):
        put(where, stream())
    assert await finished(where) == [request]
    assert await where.next_batch() == []


LIMIT, MOST = 12, 4


class Scheduled(RuleBasedStateMachine):
    """Against a model: queues of numbers, and what may be answered."""

    @initialize(overlapping=st.booleans())
    def begin(self, overlapping: bool) -> None:
        self.loop = asyncio.new_event_loop()
        self.where = scheduler(max_queue_images=LIMIT, max_batch=MOST, overlapping=overlapping)
        self.most_in_flight = 2 if overlapping else 1
        self.streams = [stream(name) for name in "abc"]
        self.queues: dict[Stream, list[Request]] = {one: [] for one in self.streams}
        self.flying: list[list[Request]] = []
        self.saving: list[list[Request]] = []
        self.held: set[Stream] = set()

    def teardown(self) -> None:
        self.loop.close()

    def on_loop(self, work: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return work()

        return self.loop.run_until_complete(run())

    @property
    def images(self) -> int:
        return sum(len(one) for group in (*self.queues.values(), *self.flying) for one in group)

    @rule(which=st.integers(0, 2), images=st.integers(1, MOST), decoded=st.booleans())
    def put(self, which: int, images: int, decoded: bool) -> None:
        owner = self.streams[which]
        own = sum(map(len, self.queues[owner]))
        own += sum(len(one) for batch in self.flying for one in batch if one.stream is owner)
        room = LIMIT - self.images
        fits = images <= room and own + images <= 2 * room
        assert (self.where.refusal(owner, images, 10 * images) is None) == fits
        try:
            request = self.on_loop(lambda: put(self.where, owner, images, decoded=decoded))
        except ServerOverloadedError:
            assert not fits
        else:
            assert fits
            self.queues[owner].append(request)

    @rule(which=st.integers(0, 2))
    def decode_first(self, which: int) -> None:
        for request in [one for one in self.queues[self.streams[which]] if one.decoded is None][:1]:
            decode(self.where, request)

    @rule(which=st.integers(0, 2), how=st.sampled_from(["cancel", "expire"]))
    def withdraw_last(self, which: int, how: str) -> None:
        queue = self.queues[self.streams[which]]
        if queue:
            self.on_loop(lambda: getattr(self.where, how)(queue[-1]))
            error = None if how == "cancel" else queue[-1].reply.exception()
            assert queue[-1].reply.cancelled() or isinstance(error, DeadlineExceededError)
            queue.pop()

    @rule()
    def take(self) -> None:
        ready = {owner: self._ready(owner) for owner in self.streams if owner not in self.held}
        count = sum(len(one) for queue in ready.values() for one in queue)
        batch, _ = self.where.take(time.monotonic() + 1)
        may = len(self.flying) < self.most_in_flight and (count >= MOST or (count and not self.flying))
        assert bool(batch) == bool(may)
        if not batch:
            return
        assert sum(map(len, batch)) <= MOST
        for owner in self.streams:
            own = [one for one in batch if one.stream is owner]
            assert own == self.queues[owner][: len(own)]  # in order, and decoded
            assert own == ready.get(owner, [])[: len(own)]
            del self.queues[owner][: len(own)]
        room = MOST - sum(map(len, batch))
        for owner, queue in ready.items():  # whoever has nothing in it would not have fitted
            if queue and not any(one.stream is owner for one in batch):
                assert len(queue[0]) > room
        self.flying.append(batch)

    def _ready(self, owner: Stream) -> list[Request]:
        queue = self.queues[owner]
        end = next((n for n, one in enumerate(queue) if one.decoded is None), len(queue))
        return queue[:end]

    @precondition(lambda self: self.flying)
    @rule()
    def done(self) -> None:
        self.saving.append(self.flying.pop(0))
        self.where.done(self.saving[-1])

    @precondition(lambda self: self.saving)
    @rule()
    def saved(self) -> None:
        self.where.saved(self.saving.pop(0))

    @rule(which=st.integers(0, 2))
    def hold_or_release(self, which: int) -> None:
        owner = self.streams[which]
        if owner in self.held:
            self.held.discard(owner)
            self.where.release(owner)
            return
        busy = any(one.stream is owner for batch in (*self.flying, *self.saving) for one in batch)
        assert self.where.try_hold(owner) == (not busy)
        if not busy:
            self.held.add(owner)

    @invariant()
    def all_is_counted(self) -> None:
        assert (self.where.images, self.where.nbytes) == (self.images, 10 * self.images)
        assert self.images <= LIMIT
        for batch in self.flying:
            assert not any(request.is_waiting for request in batch)


Scheduled.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_it_behaves_like_the_model = Scheduled.TestCase
