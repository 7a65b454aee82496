"""What the host spends on requests beside a model that uses no core: CPU time per 100 images.

The model is a stand-in for a GPU, see ``host_server``. CPU time of the engine's process and of its workers,
not wall-clock time, so that whatever else runs on the machine does not matter.
"""

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from service_checks.http_connection import PreparedRequest
from service_checks.load import LoadPlan, run_load
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import file_request, jpeg, multipart_request, raw_request
from service_checks.server_process import ServerProcess, free_port

TITLE = "CPU time of the host per 100 images, beside a stand-in for a GPU"
_SIZE = 64  # of the stand-in's images
_PHOTOGRAPH = 640, 480
_CLIENTS = 4
_MAX_BATCH = 100
_LIMIT = 1.05  # of the old checkout's CPU time


@dataclass(frozen=True)
class Spent:
    """CPU milliseconds per 100 images, and images per second of the wall clock."""

    engine: float
    workers: float
    rate: float


def run(options: CheckOptions, workers: int = 1, turns: int = 3) -> Findings:
    """Measure requests of 100 images and of one, raw and as JPEG files, with so many workers.

    Each turn is one load of this checkout, and one of the checkout ``old`` if it is given.
    """
    found = Findings("host")
    checkouts = {"new": None} if options.old is None else {"old": options.old, "new": None}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(_server(options, name, checkout, workers))
            for name, checkout in checkouts.items()
        }
        for kind, requests in kinds().items():
            _add(found, kind, _measured(servers, requests, options.seconds / turns, turns))
    return found


def _server(options: CheckOptions, name: str, checkout: Path | None, workers: int) -> ServerProcess:
    port = free_port()
    command = [sys.executable, "-m", "service_checks.host_server", *map(str, (port, workers, _MAX_BATCH))]
    return ServerProcess(command, port, options.folder / f"host-{name}.log", checkout=checkout)


def _measured(
    servers: Mapping[str, ServerProcess], requests: tuple[PreparedRequest, ...], seconds: float, turns: int
) -> dict[str, Spent]:
    """The median of the turns of each server."""
    spent: dict[str, list[Spent]] = {name: [] for name in servers}
    for server in servers.values():  # streams are opened, memories grow
        run_load(LoadPlan(server.address, requests, min(1.0, seconds), _CLIENTS))
    for turn in range(turns):
        for name in reversed(list(servers)) if turn % 2 else servers:
            spent[name].append(_measure(servers[name], requests, seconds))
    return {name: Spent(*map(median, zip(*map(astuple, each), strict=True))) for name, each in spent.items()}


def _add(found: Findings, kind: str, spent: Mapping[str, Spent]) -> None:
    for name, one in spent.items():
        words = f"engine {one.engine:.1f} ms, workers {one.workers:.1f} ms, {one.rate:.0f} images/s"
        found.note(f"{kind}: CPU per 100 images{', the old one' * (name == 'old')}", words, one.engine)
    found.details[kind] = {name: vars(one) for name, one in spent.items()}
    if "old" in spent:
        old, new = spent["old"], spent["new"]
        ratio = (new.engine + new.workers) / (old.engine + old.workers)
        found.expect_at_most(f"{kind}: engine and workers together, new by old", ratio, _LIMIT, form=",.2f")


def kinds() -> dict[str, tuple[PreparedRequest, ...]]:
    """Requests by their names, each on two streams."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (_MAX_BATCH, _SIZE, _SIZE, 3), dtype=np.uint8)
    files = [jpeg(image, _PHOTOGRAPH) for image in pixels[:10]] * 10
    streams = ("one", "two")
    return {
        "100 raw images": tuple(raw_request(name, pixels) for name in streams),
        "1 raw image": tuple(raw_request(name, pixels[:1]) for name in streams),
        "100 JPEG files": tuple(multipart_request(name, files) for name in streams),
        "1 JPEG file": tuple(file_request(name, files[0]) for name in streams),
    }


def _measure(server: ServerProcess, requests: tuple[PreparedRequest, ...], seconds: float) -> Spent:
    before, started = server.cpu_ms(), time.monotonic()
    outcomes = run_load(LoadPlan(server.address, requests, seconds, _CLIENTS))
    after, passed = server.cpu_ms(), time.monotonic() - started
    images = sum(outcome.images for outcome in outcomes if outcome.status == 200)
    if not images:
        raise RuntimeError(f"nothing was answered: {sorted({outcome.status for outcome in outcomes})}")
    engine, workers = (100 * (now - then) / images for then, now in zip(before, after, strict=True))
    return Spent(engine, workers, images / passed)
