"""Engines for tests: small memories, so that queues overflow within a few images."""

import asyncio
from typing import Any

import ramen
from ramen.client.operations import Operation, Reply, StreamAnswer
from ramen.serve.engine.engine import Engine
from ramen.serve.engine.in_thread import EngineInThread
from ramen.serve.settings import EngineSettings
from tests.helpers.sent_images import sent
from tests.helpers.slow_tests import RUN_SLOW_TESTS

PARAMETERS = {"capacity": 6, "topk": 2, "beta": 5.0, "lr": 1e-2, "codec": "sign"}
PATIENCE = 3600 if RUN_SLOW_TESTS else 120  # seconds; only a failure takes so long


def engine(
    clf: ramen.ZeroShotClassifier, *, method: str = "ramen", parameters: Any = None, **settings: Any
) -> EngineInThread:
    return EngineInThread(loop_engine(clf, method=method, parameters=parameters, **settings))


def loop_engine(
    clf: ramen.ZeroShotClassifier,
    *,
    method: str = "ramen",
    parameters: Any = None,
    shard: tuple[int, int] = (0, 1),
    **settings: Any,
) -> Engine:
    """One for the event loop that calls it."""
    given = PARAMETERS if parameters is None and method == "ramen" else parameters
    return Engine(
        clf,
        EngineSettings(**{"max_batch": 8, "max_delay_ms": 1.0, **settings}),
        method=method,
        parameters=given,
        shard=shard,
    )


def on_its_loop(where: Engine, operation: Operation[Reply]) -> Reply:
    """Call an engine from a thread beside that of its loop."""
    assert where._loop is not None
    return asyncio.run_coroutine_threadsafe(where.call(operation), where._loop).result(PATIENCE)


def make(clf: ramen.ZeroShotClassifier, **more: Any) -> ramen.Method:
    """The method that a stream of such an engine has."""
    return ramen.create("ramen", clf, visibility="causal", **{**PARAMETERS, **more})


def ask(where: EngineInThread, stream: str, *seeds: int) -> list[StreamAnswer]:
    """The answers for these images."""
    return list(where.submit(stream, sent(*seeds)).future.result(PATIENCE))
