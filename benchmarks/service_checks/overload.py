"""R7: ten times what the server can answer. It refuses what is too much, quickly, and answers the rest."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

from service_checks.http_connection import Address, HttpConnection, PreparedRequest, prepare
from service_checks.load import LoadPlan, Outcome, load, percentile, run_load, summary
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import mixed_images, raw_request
from service_checks.server_process import ServerProcess, ramen_server

TITLE = "ten times the load"
REFUSAL_MS = 50.0
_DEADLINE_MS = 2000
_QUEUED_BATCHES = 8
_STREAMS = 4
_STATISTICS = prepare("GET", "/v1/statistics")


@dataclass
class _Course:
    """What was seen while the server was overloaded."""

    outcomes: list[Outcome]
    statistics: list[dict[str, Any]]
    recovered_seconds: float


def run(options: CheckOptions, seconds: float | None = None, calm: float = 4.0) -> Findings:
    """Overload a server.

    Args:
        options: Of the run.
        seconds: For how long.
        calm: Seconds of the measurement of what it can do.
    """
    seconds = (60.0 if options.full else options.seconds) if seconds is None else seconds
    queue = _QUEUED_BATCHES * options.max_batch
    with ramen_server(options, queue_images=queue, timeout_ms=_DEADLINE_MS) as server:
        requests = _requests(options)
        outcomes = run_load(LoadPlan(server.address, requests, calm, 4), options.processes)
        usual = summary(outcomes, calm / 4)
        capacity = usual["images_per_second"] / options.max_batch  # requests per second
        plan = LoadPlan(server.address, requests, seconds, 512, max(1.0, 10 * capacity))
        course = asyncio.run(_overload(plan, options.processes, usual["p99_ms"]))
        is_alive = server.alive
        refused_at_server = _refusals(server)
    found = _findings(course, queue, is_alive, refused_at_server)
    found.details = {"usual": usual, "overload": summary(course.outcomes), "queue_images": queue}
    offered = sum(one.images for one in course.outcomes) / seconds / max(usual["images_per_second"], 1e-9)
    found.note("offered, as a multiple of what it answers in a closed loop", f"{offered:.1f}", offered)
    return found


def _requests(options: CheckOptions) -> tuple[PreparedRequest, ...]:
    pixels = mixed_images(options.max_batch, options.image_size)
    return tuple(raw_request(f"stream-{number}", pixels) for number in range(_STREAMS))


async def _overload(plan: LoadPlan, processes: int, usual_ms: float) -> _Course:
    seen: list[dict[str, Any]] = []
    watching = asyncio.create_task(_watch(plan.address, seen))
    outcomes = await (load(plan) if processes == 1 else asyncio.to_thread(run_load, plan, processes))
    ended = time.monotonic()
    connection = HttpConnection(plan.address)
    while True:  # until a request takes about as long as usual
        start = time.monotonic()
        reply = await connection.exchange(plan.requests[0])
        spent = 1000 * (time.monotonic() - start)
        if (reply.status == 200 and spent <= 2 * usual_ms) or start - ended > 30:
            break
    watching.cancel()
    connection.close()
    return _Course(outcomes, seen, start - ended)


async def _watch(address: Address, seen: list[dict[str, Any]]) -> None:
    connection = HttpConnection(address)
    while True:
        reply = await connection.exchange(_STATISTICS)
        if reply.status == 200:
            seen.append(reply.json())
        await asyncio.sleep(0.05)


def _refusals(server: ServerProcess) -> list[float]:
    """Milliseconds that refusals took, as the server's log has them."""
    spent = []
    for line in server.log_text().splitlines():
        if '"status": 429' in line:
            try:
                spent.append(float(json.loads(line)["ms"]))
            except (ValueError, KeyError):
                continue
    return spent


def _findings(course: _Course, queue: int, is_alive: bool, refused_at_server: list[float]) -> Findings:
    found = Findings("R7")
    outcomes = course.outcomes
    refused = [one for one in outcomes if one.status == 429]
    answered = [one for one in outcomes if one.status == 200]
    longest = max((int(one["waiting_images"]) for one in course.statistics), default=0)
    found.note(
        "requests", f"{len(outcomes):,}: {len(answered):,} answered, {len(refused):,} refused", len(outcomes)
    )
    found.expect(
        f"the longest queue, {len(course.statistics)} samples",
        f"at most {queue} images",
        longest <= queue,
        f"{longest}",
        longest,
    )
    found.expect("requests that were refused", "some", bool(refused), f"{len(refused):,}", len(refused))
    found.expect_zero(
        "refusals without Retry-After", sum(not one.retry_after for one in refused), len(refused)
    )
    found.expect_at_most(
        "refused within, 99 %, at the server", percentile(refused_at_server, 99), REFUSAL_MS, "ms"
    )
    usual = percentile(refused_at_server, 50)
    found.note("refused within, 50 %, at the server", f"{usual:.1f} ms", usual)
    client = percentile([1000 * (one.ended - one.sent) for one in refused], 99)
    found.expect_at_most("refused within, 99 %, at the client", client, REFUSAL_MS, "ms")
    latencies = [1000 * (one.ended - one.sent) for one in answered]
    found.expect_at_most("answered within, 99 %, from sending", percentile(latencies, 99), _DEADLINE_MS, "ms")
    others = [one for one in outcomes if one.status not in (200, 429, 504)]
    found.expect_zero("requests without an answer, or with another status", len(others), len(outcomes))
    expired = sum(one.status == 504 for one in outcomes)
    found.note("requests whose deadline passed (504)", f"{expired:,}", expired)
    found.expect("the server", "is alive", is_alive, "alive" if is_alive else "gone")
    found.expect_at_most("back to usual after", course.recovered_seconds, 1.0, "s", 2)
    return found
