"""Several engines as one, without processes: what they report, and that some of them are gone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from ramen.client.operations import (
    EngineStatistics,
    GetModel,
    GetStatistics,
    IsReady,
    ListStreams,
    NoSuchStreamError,
    Operation,
    ServerUnavailableError,
)
from ramen.serve.engine.state_folder import shard_of
from ramen.serve.shards import Shard, Shards
from tests.fakes.backends import MODEL, FakeBackend
from tests.fakes.engine_reports import STATISTICS
from tests.helpers.calls import does


class FakeShard(FakeBackend, Shard):
    """Reports what it is told to, and may be gone."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = False
        self.report: EngineStatistics | None = None

    async def call(self, operation: Operation[Any]) -> Any:
        return await self.send(operation, 0.0)

    async def send(self, operation: Operation[Any], until: float) -> Any:
        await asyncio.sleep(0)
        if self.gone:
            raise ServerUnavailableError("gone")
        if self.report is not None and isinstance(operation, GetStatistics):
            return self.report
        if isinstance(operation, GetModel):
            return self.model
        return await FakeBackend.call(self, operation)


def run(work: Callable[[Shards, list[FakeShard]], Awaitable[None]], count: int = 2) -> None:
    async def all_of_it() -> None:
        shards = [FakeShard() for _ in range(count)]
        await work(await Shards.connect(shards), shards)

    asyncio.run(all_of_it())


def test_what_concerns_a_stream_goes_to_its_shard_alone() -> None:
    async def work(service: Shards, shards: list[FakeShard]) -> None:
        names = [f"camera-{number}" for number in range(12)]
        for name in names:
            await does(service).create_stream(name)
        for number, shard in enumerate(shards):
            own = [info.name for info in await does(shard).streams()]
            assert own == sorted(name for name in names if shard_of(name, 3) == number)
            assert own
        assert [one.name for one in await does(service).streams(limit=5)] == sorted(names)[:5]
        shards[shard_of("other", 3)].early_failure = error = NoSuchStreamError("x")
        assert await service.refusal("other", 1, 1) is error

    run(work, 3)


def test_statistics_are_added_up() -> None:
    slow = replace(STATISTICS, latency_ms={"p50": 8.0, "p99": 8.5}, compute_ms={}, streams=9, mean_batch=12.0)
    found = EngineStatistics.merged([STATISTICS, slow])
    assert (found.images, found.parked, found.waiting_bytes) == (200, 14, 1400)
    assert (found.queue_images, found.streams_budget, found.images_per_second) == (2048, 2**31, 24.0)
    assert found.latency_ms == {"p50": 8.0, "p99": 9.0}
    assert found.compute_ms == STATISTICS.compute_ms
    assert found.streams == 17
    assert found.mean_batch == 6.0  # 12 images in 3 batches and 12 in 1
    nothing = EngineStatistics.merged([])
    assert (nothing.images, nothing.mean_batch, nothing.latency_ms) == (0, None, {})


def test_counters_go_on_when_an_engine_has_been_started_again() -> None:
    async def work(service: Shards, shards: list[FakeShard]) -> None:
        for shard in shards:
            shard.report = STATISTICS
        assert (await does(service).statistics()).images == 200
        shards[0].gone = True
        found = await does(service).statistics()
        assert (found.images, found.waiting_images) == (200, STATISTICS.waiting_images)
        shards[0].gone = False
        shards[0].report = replace(STATISTICS, images=7, requests=2)
        shards[1].report = replace(STATISTICS, images=101)
        for _ in range(2):
            found = await does(service).statistics()
            assert (found.images, found.requests) == (208, 102)

    run(work)


def test_some_are_gone() -> None:
    async def work(service: Shards, shards: list[FakeShard]) -> None:
        shards[1].gone = True
        assert await service.call(IsReady())
        assert await service.call(GetModel()) == MODEL
        with pytest.raises(ServerUnavailableError) as caught:
            await service.call(ListStreams())
        assert caught.value.retry_after > 0
        shards[0].gone = True
        assert not await service.call(IsReady())
        with pytest.raises(ServerUnavailableError):
            await service.call(GetModel())

    run(work)


def test_the_service_begins_when_its_engines_do() -> None:
    async def work() -> None:
        shard = FakeShard()
        shard.gone = True
        connecting = asyncio.create_task(Shards.connect([shard]))
        done, _ = await asyncio.wait([connecting], timeout=0.05)
        assert not done
        shard.gone = False
        assert (await connecting).model == MODEL

    asyncio.run(work())
