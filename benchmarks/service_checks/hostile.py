"""R10: files that are broken, hostile or no images, through HTTP. All are answered; the server lives on."""

import asyncio
import collections
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from image_corpus import good_files, hostile_files, mutated

from service_checks.http_connection import Address, HttpConnection, PreparedRequest, prepare
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import classify_path, file_request, json_request
from service_checks.server_process import ramen_server

TITLE = "hostile bytes"
_MILLISECONDS, _MEGABYTES = 200.0, 100.0
_LARGEST_MUTATED = 20_000  # bytes
_AT_A_TIME = 8  # images of a request with several
_TOO_LARGE = 100_000_000  # bytes


@dataclass
class _Tally:
    statuses: collections.Counter[str] = field(default_factory=collections.Counter)
    bad: list[str] = field(default_factory=list)
    milliseconds: list[tuple[float, str]] = field(default_factory=list)


def run(options: CheckOptions, mutations: int | None = None) -> Findings:
    """Send the corpus, and random damage to it.

    Args:
        options: Of the run.
        mutations: How many damaged files.
    """
    mutations = options.pick(1000, 10_000) if mutations is None else mutations
    files = [(file.name, file.data) for file in (*good_files(), *hostile_files())]
    damaged = _damaged(files, mutations)
    tally, found = _Tally(), Findings("R10")
    with ramen_server(options) as server:
        before = server.memory_mib()
        asyncio.run(_send(server.address, [*files, *damaged], tally))
        grown = server.peak_mib() - before
        asyncio.run(_send_together(server.address, [*files, *damaged], tally))
        is_alive = server.alive
        answers = asyncio.run(_ask_one(server.address, file_request("s", files[0][1], _ANY)))
    total = sum(tally.statuses.values())
    found.note(
        "requests", ", ".join(f"{count:,} x {name}" for name, count in sorted(tally.statuses.items())), total
    )
    found.expect_zero("files without an answer of 200 or 4xx with a reason", len(tally.bad), total)
    found.expect("the server", "answers on", is_alive and answers == 200, f"{answers}", answers)
    slowest, name = max(tally.milliseconds)
    found.expect_at_most(f"the slowest file ({name})", slowest, _MILLISECONDS, "ms")
    found.expect_at_most(
        "memory at the peak, beyond that before, files one by one", grown * 1.048576, _MEGABYTES, "MB"
    )
    found.details = {"bad": tally.bad[:50], "slowest": sorted(tally.milliseconds, reverse=True)[:10]}
    return found


_ANY = "application/octet-stream"


def _damaged(files: Sequence[tuple[str, bytes]], count: int) -> list[tuple[str, bytes]]:
    draws = random.Random(0)
    small = [(name, data) for name, data in files if 0 < len(data) <= _LARGEST_MUTATED]
    chosen = [draws.choice(small) for _ in range(count)]
    return [(f"{name}, damaged", mutated(data, draws)) for name, data in chosen]


async def _ask_one(address: Address, request: PreparedRequest) -> int:
    connection = HttpConnection(address)
    reply = await asyncio.wait_for(connection.exchange(request), 60)
    connection.close()
    return reply.status


async def _send(address: Address, files: Sequence[tuple[str, bytes]], tally: _Tally) -> None:
    """One by one, each as the body of a request, and last one that is too large."""
    connection = HttpConnection(address)
    for name, data in files:
        start = time.monotonic()
        await _exchange(connection, name, file_request("hostile", data, _ANY), tally)
        tally.milliseconds.append((1000 * (time.monotonic() - start), name))
    too_large = prepare("POST", classify_path("hostile"), bytes(_TOO_LARGE), {"Content-Type": _ANY}, images=1)
    await _exchange(connection, "100 MB", too_large, tally)
    connection.close()


async def _send_together(address: Address, files: Sequence[tuple[str, bytes]], tally: _Tally) -> None:
    """Several in a request: those that are images must be answered among the others."""
    connection = HttpConnection(address)
    for first in range(0, len(files), _AT_A_TIME):
        part = files[first : first + _AT_A_TIME]
        await _exchange(connection, part[0][0], json_request("hostile", part), tally, several=len(part))
    connection.close()


async def _exchange(
    connection: HttpConnection, name: str, request: PreparedRequest, tally: _Tally, several: int = 0
) -> None:
    try:
        reply = await asyncio.wait_for(connection.exchange(request), 60)
    except (OSError, TimeoutError) as error:
        tally.statuses["none"] += 1
        tally.bad.append(f"{name}: {error!r}")
        return
    tally.statuses[str(reply.status)] += 1
    try:
        content: dict[str, Any] = reply.json()
        if reply.status == 200:
            answers = content["answers"]
            is_good = len(answers) == max(several, 1) and all(one["label"] or one["error"] for one in answers)
        else:
            is_good = 400 <= reply.status < 500 and bool(content["error"]["message"])
    except (ValueError, KeyError, TypeError):
        is_good = False
    if not is_good:
        tally.bad.append(f"{name}: {reply.status} {reply.body[:200]!r}")
