"""Replicas that are killed, stopped and added under load."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Set
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ramen import testing
from ramen.client.operations import AnswerLostError, ServerUnavailableError
from ramen.serve.engine.in_thread import EngineInThread
from ramen.serve.on_ray.backend import RayBackend
from ramen.serve.on_ray.router import preference
from tests.helpers.learned_histories import LearnedHistory, check_answers
from tests.helpers.ray_machine import SETTINGS, run_application, scale, small_request
from tests.helpers.sent_images import sent
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.serve.engine.engines import PATIENCE, engine

pytestmark = pytest.mark.xdist_group("ray")
STREAMS, KILLS = (20, 12) if RUN_SLOW_TESTS else (4, 1)
MOST_LOST = 2  # images of a stream with save_every="batch": the last answer, and the one being written


class Load:
    """Clients of several streams, each of which sends one image after the other."""

    def __init__(self, backend: RayBackend, streams: Sequence[str]) -> None:
        self.backend = backend
        self.histories = {stream: LearnedHistory() for stream in streams}
        self.unanswered = 0
        self._stopped = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A block during which they send."""
        tasks = [asyncio.create_task(self._send(*item)) for item in self.histories.items()]
        try:
            yield
        finally:
            self._stopped = True
            await asyncio.gather(*tasks)

    async def _send(self, stream: str, history: LearnedHistory) -> None:
        for seed in itertools.count():
            if self._stopped:
                return
            await asyncio.sleep(0.2)  # so few that all can be computed once more
            try:
                (answer,) = await self.backend.classify(stream, sent(seed), timeout=PATIENCE)
            except AnswerLostError:
                self.unanswered += 1
                history.lost = seed
            else:
                history.add(seed, answer)

    async def until_all_have(self, answers: int) -> None:
        """Wait until each stream has got so many more answers."""
        aims = {stream: len(history.answers) + answers for stream, history in self.histories.items()}
        await until(lambda: all(len(self.histories[s].answers) >= aim for s, aim in aims.items()))

    def check(self) -> None:
        """Every answer was right."""
        with engine(testing.small_classifier(), **SETTINGS) as where:
            check_answers(list(self.histories.values()), where)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.05)


async def until_there_are(backend: RayBackend, count: int, other_than: Set[str] = frozenset()) -> Set[str]:
    """Wait for so many replicas, not all of which are among those; returns their names."""
    async with asyncio.timeout(PATIENCE):
        while True:
            names = dict(await backend._everyone("statistics")).keys()
            if len(names) == count and names != other_than:
                return names
            await asyncio.sleep(0.2)


def holder(state: Path, stream: str) -> int:
    """The process that has locked the state of a stream."""
    pid: int = json.loads((state / "streams" / stream / "lock").read_text())["pid"]
    return pid


def holders(state: Path, streams: Iterable[str]) -> set[int]:
    """The same for several streams, without those that are being moved."""
    found = set()
    for stream in streams:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            found.add(holder(state, stream))
    return found


def test_killed_replicas_lose_no_more_than_the_store_promises(replicas, state):
    async def scenario() -> Load:
        load = Load(await RayBackend.connect(replicas), [f"killed-{number}" for number in range(STREAMS)])
        async with load.running():
            await load.until_all_have(5)
            for _ in range(KILLS):
                before = await until_there_are(load.backend, 2)
                os.kill(holder(state, random.choice(list(load.histories))), signal.SIGKILL)
                await load.until_all_have(3)  # another replica answers,
                await until_there_are(load.backend, 2, other_than=before)  # until there is a new one
                await load.until_all_have(3)
        return load

    load = asyncio.run(scenario())
    rollbacks = [lost for history in load.histories.values() for lost in history.rollbacks]
    assert all(lost <= MOST_LOST for lost in rollbacks)
    assert load.unanswered <= KILLS * STREAMS  # those that were being answered, and no others
    load.check()


def are_where_they_belong(streams: Iterable[str], replicas: Set[str], state: Path) -> bool:
    """Whether streams are held by the same process if, and only if, they prefer the same replica."""
    pairs = set()
    for stream in streams:
        preferred = max(replicas, key=lambda replica: preference(stream, replica))
        pairs |= {(preferred, process) for process in holders(state, [stream])}
    return len(pairs) == len({name for name, _ in pairs}) == len({process for _, process in pairs}) == 2


def check_nothing_was_lost(load: Load) -> None:
    assert load.unanswered == 0
    assert not any(history.rollbacks for history in load.histories.values())
    load.check()


def test_nothing_is_lost_when_replicas_are_stopped_and_added(replicas, state):
    async def scenario() -> Load:
        # so many that they belong to both replicas, whatever their names are
        load = Load(await RayBackend.connect(replicas), [f"scaled-{number}" for number in range(20)])
        async with load.running():
            await load.until_all_have(3)
            for count in (1, 2):
                await asyncio.to_thread(scale, count)
                names = await until_there_are(load.backend, count)
                await load.until_all_have(3)
            await until(lambda: are_where_they_belong(load.histories, names, state))
            await load.until_all_have(3)
        return load

    check_nothing_was_lost(asyncio.run(scenario()))


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="starts all replicas again: make test-all")
def test_nothing_is_lost_when_the_application_is_updated(replicas, state):
    async def scenario() -> Load:
        load = Load(await RayBackend.connect(replicas), [f"updated-{number}" for number in range(STREAMS)])
        async with load.running():
            await load.until_all_have(3)
            before = await until_there_are(load.backend, 2)
            await asyncio.to_thread(run_application, small_request(state))
            assert not before & await until_there_are(load.backend, 2, other_than=before)
            await load.until_all_have(3)
        return load

    check_nothing_was_lost(asyncio.run(scenario()))


def test_a_stream_whose_state_is_used_by_somebody_else_is_unavailable(replicas, state):
    async def scenario(holder: EngineInThread) -> None:
        backend = await RayBackend.connect(replicas)
        holder.submit("foreign", sent(1)).future.result(PATIENCE)
        with pytest.raises(ServerUnavailableError, match="nothing was learned") as caught:
            await backend.classify("foreign", sent(2), timeout=5.0)
        assert caught.value.retry_after > 0
        holder.run(holder.engine.release("foreign"))
        (answer,) = await backend.classify("foreign", sent(2))
        assert answer.result.state_version == 2

    with engine(testing.small_classifier(), **{**SETTINGS, "state": str(state)}) as holder:
        asyncio.run(scenario(holder))
