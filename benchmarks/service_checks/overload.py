"""R7: ten times what the server can answer. It refuses what is too much, quickly, and answers the rest."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from service_checks.http_connection import Address, HttpConnection, PreparedRequest, prepare
from service_checks.load import LoadPlan, Outcome, percentile, run_load, summary
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import mixed_images, raw_request
from service_checks.server_process import ServerProcess, ramen_server

TITLE = "ten times the load"
_REFUSAL_MS, _DEADLINE_MS = 50.0, 2000
_QUEUED_BATCHES = 8
_STREAMS = 4
_STATISTICS = prepare("GET", "/v1/statistics")


def run(options: CheckOptions, seconds: float | None = None, calm: float = 4.0) -> Findings:
    """Overload a server for so many seconds, after ``calm`` seconds that measure what it can do."""
    seconds = (60.0 if options.full else options.seconds) if seconds is None else seconds
    queue = _QUEUED_BATCHES * options.max_batch
    pixels = mixed_images(options.max_batch, options.image_size)
    requests = tuple(raw_request(f"stream-{number}", pixels) for number in range(_STREAMS))
    with ramen_server(options, queue_images=queue, timeout_ms=_DEADLINE_MS) as server:
        outcomes = run_load(LoadPlan(server.address, requests, calm, 4), options.processes)
        usual = summary(outcomes, calm / 4)
        capacity = usual["images_per_second"] / options.max_batch  # requests per second
        plan = LoadPlan(server.address, requests, seconds, 512, max(1.0, 10 * capacity))
        outcomes, statistics = asyncio.run(_watched(plan, options.processes))
        recovered = asyncio.run(_recover(server.address, requests[0], usual["p99_ms"]))
        is_alive, at_server = server.alive, _refusals(server)
    found = _findings(outcomes, statistics, queue, at_server)
    found.expect_alive(is_alive)
    found.expect_at_most("back to usual after", recovered, 1.0, "s", ",.2f")
    found.details = {"usual": usual, "overload": summary(outcomes), "queue_images": queue}
    offered = sum(one.images for one in outcomes) / seconds / max(usual["images_per_second"], 1e-9)
    found.note("offered, as a multiple of what it answers in a closed loop", f"{offered:.1f}", offered)
    return found


async def _watched(plan: LoadPlan, processes: int) -> tuple[list[Outcome], list[dict[str, Any]]]:
    """What became of the load, and what the server said of itself meanwhile."""
    seen: list[dict[str, Any]] = []
    watching = asyncio.create_task(_watch(plan.address, seen))
    outcomes = await asyncio.to_thread(run_load, plan, processes)
    watching.cancel()
    return outcomes, seen


async def _watch(address: Address, seen: list[dict[str, Any]]) -> None:
    connection = HttpConnection(address)
    while True:
        reply = await connection.exchange(_STATISTICS)
        if reply.status == 200:
            seen.append(reply.json())
        await asyncio.sleep(0.05)


async def _recover(address: Address, request: PreparedRequest, usual_ms: float) -> float:
    """Seconds until a request begins that takes about as long as usual."""
    connection, ended = HttpConnection(address), time.monotonic()
    while True:
        start = time.monotonic()
        reply = await connection.exchange(request)
        spent = 1000 * (time.monotonic() - start)
        if (reply.status == 200 and spent <= 2 * usual_ms) or start - ended > 30:
            connection.close()
            return start - ended


def _refusals(server: ServerProcess) -> list[float]:
    """Milliseconds that refusals took, as the server's log has them."""
    spent = []
    for line in server.log_text().splitlines():
        if '"status": 429' in line:
            with suppress(ValueError, KeyError):
                spent.append(float(json.loads(line)["ms"]))
    return spent


def _findings(
    outcomes: Sequence[Outcome],
    statistics: Sequence[dict[str, Any]],
    queue: int,
    at_server: Sequence[float],
) -> Findings:
    found = Findings("R7")
    refused = [one for one in outcomes if one.status == 429]
    answered = [one for one in outcomes if one.status == 200]
    counts = f"{len(outcomes):,}: {len(answered):,} answered, {len(refused):,} refused"
    found.note("requests", counts, len(outcomes))
    longest = max((int(one["waiting_images"]) for one in statistics), default=0)
    found.expect_at_most(f"the longest queue, {len(statistics)} samples", longest, queue, "images", "d")
    found.expect("requests that were refused", "some", bool(refused), f"{len(refused):,}", len(refused))
    silent = sum(not one.retry_after for one in refused)
    found.expect_zero("refusals without Retry-After", silent, len(refused))
    found.expect_at_most("refused within, 99 %, at the server", percentile(at_server, 99), _REFUSAL_MS, "ms")
    usual = percentile(at_server, 50)
    found.note("refused within, 50 %, at the server", f"{usual:.1f} ms", usual)
    client = percentile([1000 * (one.ended - one.sent) for one in refused], 99)
    found.expect_at_most("refused within, 99 %, at the client", client, _REFUSAL_MS, "ms")
    latency = percentile([1000 * (one.ended - one.sent) for one in answered], 99)
    found.expect_at_most("answered within, 99 %, from sending", latency, _DEADLINE_MS, "ms")
    others = sum(one.status not in (200, 429, 504) for one in outcomes)
    found.expect_zero("requests without an answer, or with another status", others, len(outcomes))
    expired = sum(one.status == 504 for one in outcomes)
    found.note("requests whose deadline passed (504)", f"{expired:,}", expired)
    return found
