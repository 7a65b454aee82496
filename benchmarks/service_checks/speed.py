"""Images per second through HTTP beside what the library does, and how long answers take at half load.

The library's figures are those of ``method.predict`` on batches that are ready, in this process, while the
server waits; before and after the server is measured, in turns with it.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ramen.experiments.measure import seconds as seconds_of
from ramen.methods import Method
from ramen.serve.engine.stream_cache import StreamMethods
from ramen.serve.settings import EngineSettings
from service_checks.http_connection import PreparedRequest
from service_checks.load import LoadPlan, run_load, summary, tail
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import jpeg, mixed_images, multipart_request, raw_request
from service_checks.server_process import ServerProcess, ramen_server

TITLE = "images per second through HTTP, and latency at half load"
_SHARE = 0.8
_TIMES_THE_STEP = 3.0
_OUTSTANDING = 4  # batches that clients keep waiting


@dataclass(frozen=True)
class _Library:
    """What a method does by itself."""

    images_per_second: float  # on batches that are ready
    step_ms: float  # median of a batch


class _BareMethod:
    """A method as the engine makes it for a stream, and batches for it."""

    def __init__(self, options: CheckOptions) -> None:
        classifier = options.classifier
        methods = StreamMethods(classifier, "ramen", {}, EngineSettings().stream_memory)
        self._method: Method = methods.create()
        pixels = mixed_images(4 * options.max_batch, options.image_size)
        self._images = classifier.preprocess(torch.from_numpy(pixels).permute(0, 3, 1, 2))

    def measure(self, batch: int, seconds: float) -> _Library:
        """Answer batches of that size for so long."""
        batches = itertools.cycle([part for part in self._images.split(batch) if len(part) == batch])
        for _ in range(3):
            self._step(next(batches))
        spent: list[float] = []
        while sum(spent) < seconds or len(spent) < 3:
            spent.append(seconds_of(partial(self._step, next(batches)), self._images.device))
        return _Library(batch * len(spent) / sum(spent), 1000 * statistics.median(spent))

    def _step(self, images: torch.Tensor) -> None:
        self._method.predict(images).labels.cpu()


def run(options: CheckOptions, seconds: float | None = None) -> Findings:
    """Measure requests of several sizes and kinds, each for so many seconds."""
    seconds = options.seconds / 2 if seconds is None else seconds
    found, bare = Findings("speed"), _BareMethod(options)
    with ramen_server(options, queue_images=8 * options.max_batch) as server:
        for name, size, requests in _kinds(options):
            row = found.details[name] = _measure(options, server, bare, size, requests, seconds)
            _add(found, name, row, size == options.max_batch)
    return found


def _kinds(options: CheckOptions) -> list[tuple[str, int, Sequence[PreparedRequest]]]:
    """Names of measurements, images per request, and requests."""
    largest = options.max_batch
    pixels = mixed_images(max(64, largest), options.image_size)
    kinds: list[tuple[str, int, Sequence[PreparedRequest]]] = []
    for size in sorted({1, min(8, largest), largest}):
        starts = range(0, min(len(pixels), 8 * size) - size + 1, size)
        requests = [raw_request("pixels", pixels[start : start + size]) for start in starts]
        kinds.append((f"pixels, {size} per request", size, requests))
    cameras = [raw_request(f"camera-{number}", pixels[number : number + 1]) for number in range(16)]
    spread = [raw_request(f"stream-{number}", pixels[:largest]) for number in range(8)]
    photographs = [multipart_request("photographs", [jpeg(image) for image in pixels[:largest]])]
    return [
        *kinds,
        ("pixels, 1 per request, 16 streams", 1, cameras),
        (f"pixels, {largest} per request, 8 streams", largest, spread),
        (f"JPEG files of 500 x 375, {largest} per request", largest, photographs),
    ]


def _measure(
    options: CheckOptions,
    server: ServerProcess,
    bare: _BareMethod,
    size: int,
    requests: Sequence[PreparedRequest],
    seconds: float,
) -> dict[str, Any]:
    clients = min(256, max(_OUTSTANDING, _OUTSTANDING * options.max_batch // size))
    before = bare.measure(options.max_batch, seconds / 2)
    same = bare.measure(size, seconds / 2)
    usual = LoadPlan(server.address, tuple(requests), seconds, clients)
    run_load(usual)  # streams are made, steps are recorded
    closed = summary(run_load(usual, options.processes), seconds / 4)
    after = bare.measure(options.max_batch, seconds / 2)
    library = (before.images_per_second + after.images_per_second) / 2
    rate = max(closed["images_per_second"] / size / 2, 1 / seconds)
    half_load = LoadPlan(server.address, tuple(requests), 2 * seconds, 512, rate)
    calm = run_load(half_load, options.processes)
    half = summary(calm, seconds / 2)
    step = (before.step_ms + after.step_ms) / 2
    return {
        "http_images_per_second": closed["images_per_second"],
        "library_images_per_second": library,
        "library_same_size_images_per_second": same.images_per_second,
        "ratio": closed["images_per_second"] / library,
        "ratio_same_size": closed["images_per_second"] / same.images_per_second,
        "step_ms": step,
        "half_load_p50_ms": half["p50_ms"],
        "half_load_p99_ms": half["p99_ms"],
        "half_load_queued_p50_ms": half["queued_p50_ms"],
        "half_load_computed_p50_ms": half["computed_p50_ms"],
        "half_load_tail": tail(calm, seconds / 2),
        "p99_steps": half["p99_ms"] / step,
        "not_answered": closed["failed"] + half["failed"],
        "clients": clients,
    }


def _add(found: Findings, name: str, row: dict[str, Any], is_full_batch: bool) -> None:
    share, steps = row["ratio"], row["p99_steps"]
    ours, library = row["http_images_per_second"], row["library_images_per_second"]
    latency = f"{steps:.2f} steps ({row['half_load_p99_ms']:.1f} ms; p50 {row['half_load_p50_ms']:.1f} ms)"
    if is_full_batch:
        rates = f"{share:.2f} ({ours:,.0f} of {library:,.0f} images per second)"
        found.expect(name, f"at least {_SHARE} of the library", share >= _SHARE, rates, share)
        target = f"at most {_TIMES_THE_STEP:g} steps"
        found.expect("  p99 at half that load", target, steps <= _TIMES_THE_STEP, latency, steps)
    else:
        same = row["ratio_same_size"]
        rates = f"{share:.2f} of the library in full batches, {same:.2f} in batches that small"
        found.note(name, rates, share)
        found.note("  p99 at half that load", latency, steps)
