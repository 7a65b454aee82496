"""Engines that are killed and started again under load."""

import asyncio
import itertools
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from ramen import testing
from ramen.client.operations import AnswerLostError
from tests.helpers.calls import does
from tests.helpers.learned_histories import LearnedHistory, check_answers
from tests.helpers.ray_machine import SETTINGS, run_application, small_request
from tests.helpers.sent_images import sent
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.serve.engine.engines import engine
from tests.serve.services.conftest import PATIENCE, Served

pytestmark = pytest.mark.xdist_group("ray")
STREAMS, KILLS = (20, 12) if RUN_SLOW_TESTS else (4, 1)
MOST_LOST = 2  # images of a stream with save_every="batch": the last answer, and the one being written


class Load:
    """Clients of several streams, each of which sends one image after the other."""

    def __init__(self, backend: Any, streams: Sequence[str]) -> None:
        self.backend = does(backend)
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
    while not condition():
        await asyncio.sleep(0.05)


def owner(served: Served, stream: str) -> int | None:
    """The process that has locked the folder of a stream's engine; None if there is none."""
    with suppress(FileNotFoundError, json.JSONDecodeError):
        lock = served.folder(stream).parent.parent / "lock"
        pid: int = json.loads(lock.read_text())["pid"]
        return pid
    return None


@pytest.mark.parametrize("served", ["gpus", "ray"], indirect=True)
def test_killed_engines_lose_no_more_than_the_store_promises(served: Served) -> None:
    async def scenario() -> Load:
        load = Load(served.backend, [f"killed-{number}" for number in range(STREAMS)])
        owners = {stream: owner(served, stream) for stream in load.histories}
        assert len(set(owners.values())) == served.engines
        async with load.running():
            await load.until_all_have(5)
            for _ in range(KILLS):
                stream = random.choice(list(load.histories))
                killed = owner(served, stream)
                assert killed is not None
                os.kill(killed, signal.SIGKILL)
                await until(lambda: owner(served, stream) not in (None, killed))  # noqa: B023
                await load.until_all_have(3)
        return load

    load = served.run(scenario())
    for stream in load.histories:
        assert len(list(served.state.rglob(stream))) == 1
    rollbacks = [lost for history in load.histories.values() for lost in history.rollbacks]
    assert all(lost <= MOST_LOST for lost in rollbacks)
    assert load.unanswered <= KILLS * STREAMS  # those that were being answered, and no others
    load.check()


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="starts all engines again: make test-all")
@pytest.mark.parametrize("served", ["ray"], indirect=True)
def test_nothing_is_lost_when_the_application_on_ray_is_updated(served: Served) -> None:
    async def scenario() -> Load:
        load = Load(served.backend, [f"updated-{number}" for number in range(STREAMS)])
        async with load.running():
            await load.until_all_have(3)
            before = {stream: owner(served, stream) for stream in load.histories}
            await asyncio.to_thread(run_application, small_request(served.state))
            await until(lambda: all(owner(served, s) not in (None, pid) for s, pid in before.items()))
            await load.until_all_have(3)
        return load

    load = served.run(scenario())
    assert load.unanswered == 0
    assert not any(history.rollbacks for history in load.histories.values())
    load.check()
