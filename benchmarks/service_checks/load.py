"""Load on a server: a closed loop of clients that each wait for an answer, or an open loop at a given rate.

In an open loop requests come when they are due, whether or not earlier ones were answered, as they do from
the world outside. Bodies are ready before the clock runs. ``run_load`` can spread the clients over several
processes, for servers that are faster than one process can ask.
"""

import asyncio
import re
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, chain, cycle
from multiprocessing import get_context
from typing import Any

import numpy as np

from service_checks.http_connection import Address, HttpConnection, PreparedRequest


@dataclass(frozen=True)
class Outcome:
    """One request; times are those of the clock ``time.monotonic``, which all processes share."""

    due: float
    sent: float
    ended: float
    status: int  # 0 if no answer came
    images: int
    retry_after: bool = False  # whether the answer said when to try again
    queued_ms: float | None = None  # how long the first image waited, by the server's own account
    computed_ms: float | None = None  # how long its batch took, likewise

    @property
    def latency(self) -> float:
        """Seconds from when it was due; a client that is late does not hide what its user waits."""
        return self.ended - self.due


@dataclass(frozen=True)
class LoadPlan:
    """What to send."""

    address: Address
    requests: tuple[PreparedRequest, ...]  # which clients send in turn
    seconds: float
    clients: int  # how many at a time wait for an answer; in an open loop, how many at most
    rate: float | None = None  # requests per second of an open loop; None for a closed one
    start: float | None = None  # when to begin; None for at once
    patience: float = 120.0  # seconds that a client waits for an answer


async def load(plan: LoadPlan) -> list[Outcome]:
    """Send what is planned, and report what became of each request."""
    if plan.start is not None:
        await asyncio.sleep(plan.start - time.monotonic())
    return await (_closed_loop if plan.rate is None else _open_loop)(plan)


async def _exchange(
    connection: HttpConnection, request: PreparedRequest, due: float, patience: float
) -> Outcome:
    sent = time.monotonic()
    try:
        reply = await connection.exchange(request, patience)
    except (OSError, TimeoutError):
        return Outcome(due, sent, time.monotonic(), 0, request.images)
    ended = time.monotonic()
    times = (_first_time(name, reply.body) for name in (b"queued_ms", b"computed_ms"))
    return Outcome(due, sent, ended, reply.status, request.images, "retry-after" in reply.headers, *times)


def _first_time(name: bytes, body: bytes) -> float | None:
    """Without parsing all of it, which would take the client's time."""
    found = re.search(rb'"%b":\s*([0-9.e+-]+)' % name, body)
    return None if found is None else float(found[1])


async def _closed_loop(plan: LoadPlan) -> list[Outcome]:
    outcomes: list[Outcome] = []
    requests = cycle(plan.requests)
    end = time.monotonic() + plan.seconds

    async def client() -> None:
        connection = HttpConnection(plan.address)
        while (now := time.monotonic()) < end:
            outcomes.append(await _exchange(connection, next(requests), now, plan.patience))
            if not outcomes[-1].status:
                await asyncio.sleep(0.01)  # the server is gone
        connection.close()

    await asyncio.gather(*(client() for _ in range(plan.clients)))
    return outcomes


async def _open_loop(plan: LoadPlan) -> list[Outcome]:
    assert plan.rate is not None
    outcomes: list[Outcome] = []
    idle = [HttpConnection(plan.address) for _ in range(plan.clients)]
    requests, running = cycle(plan.requests), set[asyncio.Task[None]]()
    start = time.monotonic()

    async def send(connection: HttpConnection, due: float) -> None:
        outcomes.append(await _exchange(connection, next(requests), due, plan.patience))
        idle.append(connection)

    for number in range(max(1, int(plan.rate * plan.seconds))):
        due = start + number / plan.rate
        wait = due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        elif number % 16 == 0:
            await asyncio.sleep(0)  # answers are read also by a client that is late
        if time.monotonic() > start + plan.seconds:
            break  # this process cannot send more in that time
        while not idle:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(send(idle.pop(), due))
        running.add(task)
        task.add_done_callback(running.discard)
    while running:
        await asyncio.wait(running)
    for connection in idle:
        connection.close()
    return outcomes


def run_load(plan: LoadPlan, processes: int = 1) -> list[Outcome]:
    """The same for whoever has no event loop, with the clients spread over so many processes."""
    if processes == 1:
        return asyncio.run(load(plan))
    start = time.monotonic() + 2.0
    shares = [
        replace(
            plan,
            clients=max(1, plan.clients // processes),
            rate=None if plan.rate is None else plan.rate / processes,
            # In an open loop they take turns: together they are as even as one would be.
            start=start if plan.rate is None else start + number / plan.rate,
        )
        for number in range(processes)
    ]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return list(chain.from_iterable(pool.map(run_load, shares)))


# -- figures ------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], percent: float) -> float:
    """Not a number if there are no values."""
    return float(np.percentile(values, percent)) if values else float("nan")


def most_outstanding(outcomes: Sequence[Outcome]) -> int:
    """The most requests that were sent and not answered at a time."""
    changes = [(one.sent, 1) for one in outcomes] + [(one.ended, -1) for one in outcomes]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def _counted_from(outcomes: Sequence[Outcome], warm_up: float) -> float:
    """When the warm-up has ended: requests that were due before do not count, unless none would be left."""
    first = min((outcome.due for outcome in outcomes), default=0.0)
    return first + warm_up if any(outcome.due >= first + warm_up for outcome in outcomes) else first


def summary(outcomes: Sequence[Outcome], warm_up: float = 0.0) -> dict[str, Any]:
    """Rates and percentiles, in milliseconds, of requests that were due after so many seconds."""
    start = _counted_from(outcomes, warm_up)
    counted = [outcome for outcome in outcomes if outcome.due >= start]
    answered = [outcome for outcome in counted if outcome.status == 200]
    refused = [outcome for outcome in counted if outcome.status in (429, 503)]
    end = max((outcome.due for outcome in counted), default=start)
    within = [outcome for outcome in outcomes if start <= outcome.ended <= end and outcome.status == 200]
    if answered and not within:  # so few that each ended after the last was due
        within, end = answered, max(outcome.ended for outcome in answered)
    seconds = max(end - start, 1e-9)
    latencies = [1000 * outcome.latency for outcome in answered]
    queued = [one.queued_ms for one in answered if one.queued_ms is not None]
    computed = [one.computed_ms for one in answered if one.computed_ms is not None]
    return {
        "requests": len(counted),
        "offered_requests_per_second": len(counted) / seconds,
        "images_per_second": sum(outcome.images for outcome in within) / seconds,
        "answered_share": len(answered) / max(len(counted), 1),
        "refused_share": len(refused) / max(len(counted), 1),
        "failed": len(counted) - len(answered) - len(refused),
        "p50_ms": percentile(latencies, 50),
        "p99_ms": percentile(latencies, 99),
        "queued_p50_ms": percentile(queued, 50),
        "computed_p50_ms": percentile(computed, 50),
        "refusal_p99_ms": percentile([1000 * (one.ended - one.sent) for one in refused], 99),
    }


def tail(outcomes: Sequence[Outcome], warm_up: float = 0.0) -> dict[str, Any]:
    """Where the time of the slowest twentieth of the answered requests went, beside that of the others.

    Medians in milliseconds: ``client`` is how late the client sent it, ``queued`` and ``computed`` are the
    server's own account (files are decoded within the first), ``rest`` is HTTP and the way between processes.
    Slow requests that overlap in time are a group, held up by one thing; queueing spreads them over the load.
    """
    start = _counted_from(outcomes, warm_up)
    answered = [outcome for outcome in outcomes if outcome.due >= start and outcome.status == 200]
    least = percentile([outcome.latency for outcome in answered], 95)
    slow = sorted((one for one in answered if one.latency >= least), key=lambda one: one.due)
    groups, until = 0, float("-inf")
    for one in slow:
        groups += one.due > until
        until = max(until, one.ended)
    others = [one for one in answered if one.latency < least]
    medians = {"slow": _parts(slow), "others": _parts(others)}
    return {"requests": len(slow), "from_ms": 1000 * least, "groups": groups, **medians}


def _parts(outcomes: Sequence[Outcome]) -> dict[str, float]:
    rows = []
    for one in outcomes:
        latency, client = 1000 * one.latency, 1000 * (one.sent - one.due)
        queued, computed = one.queued_ms or 0.0, one.computed_ms or 0.0
        rows.append((latency, client, queued, computed, latency - client - queued - computed))
    names = ("latency_ms", "client_ms", "queued_ms", "computed_ms", "rest_ms")
    medians = map(statistics.median, zip(*rows, strict=True))
    return {name: round(value, 3) for name, value in zip(names, medians, strict=False)}
