"""R10: files that are broken, hostile or no images, through HTTP. All are answered; the server lives on."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from image_corpus import good_files, hostile_files, mutated

from service_checks.http_connection import Address, HttpConnection, PreparedRequest, prepare, send
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import classify_path, file_request, json_request
from service_checks.server_process import ramen_server

TITLE = "hostile bytes"
_MILLISECONDS, _MEGABYTES = 200.0, 100.0
_LARGEST_MUTATED = 20_000  # bytes
_AT_A_TIME = 8  # images of a request with several
_TOO_LARGE = 100_000_000  # bytes
_ANY = "application/octet-stream"


class _Tally:
    """Sends files, and notes how they were answered."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.statuses, self.bad = Counter[str](), list[str]()
        self.milliseconds: list[tuple[float, str]] = []

    async def send(self, files: Sequence[tuple[str, bytes]]) -> None:
        """One by one, each as the body of a request, and last one that is too large."""
        connection = HttpConnection(self._address)
        for name, data in files:
            start = time.monotonic()
            await self._exchange(connection, name, file_request("hostile", data, _ANY))
            self.milliseconds.append((1000 * (time.monotonic() - start), name))
        too_large = prepare("POST", classify_path("hostile"), bytes(_TOO_LARGE), {"Content-Type": _ANY})
        await self._exchange(connection, "100 MB", too_large)
        connection.close()

    async def send_together(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Several in a request: those that are images must be answered among the others."""
        connection = HttpConnection(self._address)
        for first in range(0, len(files), _AT_A_TIME):
            part = files[first : first + _AT_A_TIME]
            await self._exchange(connection, part[0][0], json_request("hostile", part))
        connection.close()

    async def _exchange(self, connection: HttpConnection, name: str, request: PreparedRequest) -> None:
        try:
            reply = await connection.exchange(request, patience=60)
        except (OSError, TimeoutError) as error:
            self.statuses["none"] += 1
            self.bad.append(f"{name}: {error!r}")
            return
        self.statuses[str(reply.status)] += 1
        try:
            content: dict[str, Any] = reply.json()
            if reply.status == 200:
                answers = content["answers"]
                is_good = len(answers) == request.images and all(a["label"] or a["error"] for a in answers)
            else:
                is_good = 400 <= reply.status < 500 and bool(content["error"]["message"])
        except (ValueError, KeyError, TypeError):
            is_good = False
        if not is_good:
            self.bad.append(f"{name}: {reply.status} {reply.body[:200]!r}")


def run(options: CheckOptions, mutations: int | None = None) -> Findings:
    """Send the corpus, and so many files of it with random damage."""
    mutations = options.pick(1000, 10_000) if mutations is None else mutations
    files = [(file.name, file.data) for file in (*good_files(), *hostile_files())]
    draws = random.Random(0)
    small = [(name, data) for name, data in files if 0 < len(data) <= _LARGEST_MUTATED]
    chosen = [draws.choice(small) for _ in range(mutations)]
    everything = [*files, *((f"{name}, damaged", mutated(data, draws)) for name, data in chosen)]
    found = Findings("R10")
    with ramen_server(options) as server:
        tally, before = _Tally(server.address), server.memory_mib()
        asyncio.run(tally.send(everything))
        grown = server.peak_mib() - before
        asyncio.run(tally.send_together(everything))
        is_alive = server.alive
        status = send(server.address, file_request("s", files[0][1], _ANY)).status
    total = sum(tally.statuses.values())
    counts = ", ".join(f"{count:,} x {name}" for name, count in sorted(tally.statuses.items()))
    found.note("requests", counts, total)
    found.expect_zero("files without an answer of 200 or 4xx with a reason", len(tally.bad), total)
    found.expect("the server", "answers on", is_alive and status == 200, f"{status}", status)
    slowest, name = max(tally.milliseconds)
    found.expect_at_most(f"the slowest file ({name})", slowest, _MILLISECONDS, "ms")
    what = "memory at the peak, beyond that before, files one by one"
    found.expect_at_most(what, grown * 1.048576, _MEGABYTES, "MB")
    found.details = {"bad": tally.bad[:50], "slowest": sorted(tally.milliseconds, reverse=True)[:10]}
    return found
