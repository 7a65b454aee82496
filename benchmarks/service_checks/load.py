"""Load on a server: a closed loop of clients that each wait for an answer, or an open loop at a given rate.

In an open loop requests come when they are due, whether or not earlier ones were answered, as they do from
the world outside. Bodies are ready before the clock runs. ``run_load`` can spread the clients over several
processes, for servers that are faster than one process can ask.
"""

import asyncio
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import numpy as np

from service_checks.http_connection import Address, HttpConnection, PreparedRequest, Reply


@dataclass(frozen=True)
class Outcome:
    """One request.

    Attributes:
        due: When it was to be sent, on the clock ``time.monotonic``, which all processes share.
        sent: When it was.
        ended: When its answer was there.
        status: Of the answer; 0 if none came.
        images: How many images were in it.
        retry_after: Whether the answer said when to try again.
        queued_ms: How long the first image waited, by the server's own account; None if it gave none.
        computed_ms: How long its batch took, likewise.
    """

    due: float
    sent: float
    ended: float
    status: int
    images: int
    retry_after: bool = False
    queued_ms: float | None = None
    computed_ms: float | None = None

    @property
    def latency(self) -> float:
        """Seconds from when it was due; a client that is late does not hide what its user waits."""
        return self.ended - self.due


@dataclass(frozen=True)
class LoadPlan:
    """What to send.

    Attributes:
        address: Where to.
        requests: Which clients send in turn.
        seconds: For how long.
        clients: How many at a time wait for an answer; in an open loop, how many at most.
        rate: Requests per second of an open loop; None for a closed loop.
        start: When to begin, on the clock ``time.monotonic``; None for at once.
        patience: Seconds that a client waits for an answer.
    """

    address: Address
    requests: tuple[PreparedRequest, ...]
    seconds: float
    clients: int
    rate: float | None = None
    start: float | None = None
    patience: float = 120.0


Listener = Callable[[PreparedRequest, Reply], None]


async def load(plan: LoadPlan, listener: Listener | None = None) -> list[Outcome]:
    """Send what is planned, and report what became of each request.

    Args:
        plan: What to send.
        listener: Called with each request and its answer.
    """
    if plan.start is not None:
        await asyncio.sleep(plan.start - time.monotonic())
    return await (_closed_loop if plan.rate is None else _open_loop)(plan, listener)


async def _exchange(
    connection: HttpConnection,
    request: PreparedRequest,
    due: float,
    patience: float,
    listener: Listener | None,
) -> Outcome:
    sent = time.monotonic()
    try:
        reply = await asyncio.wait_for(connection.exchange(request), patience)
    except (OSError, TimeoutError):
        return Outcome(due, sent, time.monotonic(), 0, request.images)
    ended = time.monotonic()
    if listener is not None:
        listener(request, reply)
    times = (_first_time(name, reply.body) for name in (b"queued_ms", b"computed_ms"))
    return Outcome(due, sent, ended, reply.status, request.images, "retry-after" in reply.headers, *times)


def _first_time(name: bytes, body: bytes) -> float | None:
    """Without parsing all of it, which would take the client's time."""
    found = re.search(rb'"%b":\s*([0-9.e+-]+)' % name, body)
    return None if found is None else float(found[1])


async def _closed_loop(plan: LoadPlan, listener: Listener | None) -> list[Outcome]:
    outcomes: list[Outcome] = []
    requests = cycle(plan.requests)
    end = time.monotonic() + plan.seconds

    async def client() -> None:
        connection = HttpConnection(plan.address)
        while (now := time.monotonic()) < end:
            outcome = await _exchange(connection, next(requests), now, plan.patience, listener)
            outcomes.append(outcome)
            if not outcome.status:
                await asyncio.sleep(0.01)  # the server is gone
        connection.close()

    await asyncio.gather(*(client() for _ in range(plan.clients)))
    return outcomes


async def _open_loop(plan: LoadPlan, listener: Listener | None) -> list[Outcome]:
    assert plan.rate is not None
    outcomes: list[Outcome] = []
    idle = [HttpConnection(plan.address) for _ in range(plan.clients)]
    requests, running = cycle(plan.requests), set[asyncio.Task[None]]()
    start = time.monotonic()

    async def send(connection: HttpConnection, due: float) -> None:
        outcomes.append(await _exchange(connection, next(requests), due, plan.patience, listener))
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
    """The same for whoever has no event loop.

    Args:
        plan: What to send.
        processes: Over how many the clients are spread; 1 for this one.
    """
    if processes == 1:
        return asyncio.run(load(plan))
    shares = _shares(plan, processes, time.monotonic() + 2.0)
    command = [sys.executable, "-m", "service_checks.load_process"]
    folder = Path(__file__).parents[1]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder) for _ in shares
    ]
    for child, share in zip(children, shares, strict=True):
        assert child.stdin is not None
        pickle.dump(share, child.stdin)
        child.stdin.close()
    outcomes: list[Outcome] = []
    for child in children:
        assert child.stdout is not None
        outcomes += pickle.load(child.stdout)
        child.wait()
    return outcomes


def _shares(plan: LoadPlan, processes: int, start: float) -> list[LoadPlan]:
    """What each process sends. In an open loop they take turns: together they are as even as one would be."""
    return [
        replace(
            plan,
            clients=max(1, plan.clients // processes),
            rate=None if plan.rate is None else plan.rate / processes,
            start=start if plan.rate is None else start + number / plan.rate,
        )
        for number in range(processes)
    ]


# -- figures ------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], percent: float) -> float:
    """Not a number if there are no values."""
    return float(np.percentile(values, percent)) if values else float("nan")


def most_outstanding(outcomes: Sequence[Outcome]) -> int:
    """The most requests that were sent and not answered at a time."""
    changes = [(one.sent, 1) for one in outcomes] + [(one.ended, -1) for one in outcomes]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def counted_from(outcomes: Sequence[Outcome], warm_up: float) -> float:
    """When the warm-up of a load has ended: requests that were due before do not count.

    Args:
        outcomes: What became of requests.
        warm_up: Seconds after the first one, unless nothing would be left.
    """
    first = min((outcome.due for outcome in outcomes), default=0.0)
    return first + warm_up if any(outcome.due >= first + warm_up for outcome in outcomes) else first


def summary(outcomes: Sequence[Outcome], warm_up: float = 0.0) -> dict[str, Any]:
    """Rates and percentiles, in milliseconds, of requests that were due after the warm-up.

    Args:
        outcomes: What became of requests.
        warm_up: Seconds after the first one that do not count, unless nothing else is there.
    """
    start = counted_from(outcomes, warm_up)
    counted = [outcome for outcome in outcomes if outcome.due >= start]
    answered = [outcome for outcome in counted if outcome.status == 200]
    refused = [outcome for outcome in counted if outcome.status in (429, 503)]
    end = max((outcome.due for outcome in counted), default=start)
    within = [outcome for outcome in outcomes if start <= outcome.ended <= end and outcome.status == 200]
    if answered and not within:  # so few that each ended after the last was due
        within, end = answered, max(outcome.ended for outcome in answered)
    seconds = max(end - start, 1e-9)
    return {
        "requests": len(counted),
        "offered_requests_per_second": len(counted) / seconds,
        "images_per_second": sum(outcome.images for outcome in within) / seconds,
        "answered_share": len(answered) / max(len(counted), 1),
        "refused_share": len(refused) / max(len(counted), 1),
        "failed": len(counted) - len(answered) - len(refused),
        "p50_ms": percentile([1000 * outcome.latency for outcome in answered], 50),
        "p99_ms": percentile([1000 * outcome.latency for outcome in answered], 99),
        "queued_p50_ms": percentile([one.queued_ms for one in answered if one.queued_ms is not None], 50),
        "computed_p50_ms": percentile(
            [one.computed_ms for one in answered if one.computed_ms is not None], 50
        ),
        "refusal_p99_ms": percentile([1000 * (one.ended - one.sent) for one in refused], 99),
    }
