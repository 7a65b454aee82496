"""Images per second through HTTP beside what the library does, and how long answers take at half load.

The library's figures are those of ``method.predict`` on batches that are ready, in this process, while the
server waits; before and after the server is measured, in turns with it.
"""

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ramen.experiments.measure import wait_for
from ramen.methods import Method
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.engine.stream_cache import StreamMethods
from service_checks.http_connection import PreparedRequest
from service_checks.load import LoadPlan, run_load, summary
from service_checks.options import CheckOptions
from service_checks.profiles import profiled, profiled_server
from service_checks.report import Findings
from service_checks.sent_images import Pixels, jpeg, mixed_images, multipart_request, raw_request
from service_checks.server_process import ServerProcess
from service_checks.tails import tail

TITLE = "images per second through HTTP, and latency at half load"
_SHARE = 0.8
_TIMES_THE_STEP = 3.0
_OUTSTANDING = 4  # batches that clients keep waiting


@dataclass(frozen=True)
class _Library:
    """What a method does by itself.

    Attributes:
        images_per_second: On batches that are ready.
        step_ms: Median of a batch.
    """

    images_per_second: float
    step_ms: float


class _BareMethod:
    """A method as the engine makes it for a stream, and batches for it.

    Args:
        options: Of the run.
    """

    def __init__(self, options: CheckOptions) -> None:
        classifier = options.classifier
        methods = StreamMethods(classifier, "ramen", {}, EngineSettings().stream_memory)
        self._method: Method = methods.create()
        pixels = mixed_images(4 * options.max_batch, options.image_size)
        self._images: Tensor = classifier.preprocess(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        self._device = classifier.device

    def measure(self, batch: int, seconds: float) -> _Library:
        """Answer batches of that size for so long."""
        batches = itertools.cycle([part for part in self._images.split(batch) if len(part) == batch])
        for _ in range(3):
            self._step(next(batches))
        spent: list[float] = []
        while sum(spent) < seconds or len(spent) < 3:
            spent.append(self._step(next(batches)))
        return _Library(batch * len(spent) / sum(spent), 1000 * statistics.median(spent))

    def _step(self, images: Tensor) -> float:
        start = time.perf_counter()
        self._method.predict(images).labels.cpu()
        wait_for(self._device)
        return time.perf_counter() - start


def run(options: CheckOptions, seconds: float | None = None) -> Findings:
    """Measure requests of several sizes and kinds.

    Args:
        options: Of the run.
        seconds: Of each measurement.
    """
    seconds = options.seconds / 2 if seconds is None else seconds
    found, bare = Findings("speed"), _BareMethod(options)
    sizes = sorted({1, min(8, options.max_batch), options.max_batch})
    with profiled_server(options, queue_images=8 * options.max_batch) as server:
        for name, size, requests in _kinds(options, sizes):
            row = _measure(options, server, bare, name, size, requests, seconds)
            found.details[name] = row
            _add(found, name, row, size == options.max_batch)
    return found


def _kinds(options: CheckOptions, sizes: Sequence[int]) -> list[tuple[str, int, tuple[PreparedRequest, ...]]]:
    """Names of measurements, images per request, and requests."""
    pixels = mixed_images(max(64, options.max_batch), options.image_size)
    largest = sizes[-1]
    kinds = [(f"pixels, {size} per request", size, _raw(pixels, size)) for size in sizes]
    spread = tuple(raw_request(f"stream-{number}", pixels[:largest]) for number in range(8))
    cameras = tuple(raw_request(f"camera-{number}", pixels[number : number + 1]) for number in range(16))
    files = [jpeg(image) for image in pixels[:largest]]
    photographs = (multipart_request("photographs", files),)
    return [
        *kinds,
        ("pixels, 1 per request, 16 streams", 1, cameras),
        (f"pixels, {largest} per request, 8 streams", largest, spread),
        (f"JPEG files of 500 x 375, {largest} per request", largest, photographs),
    ]


def _raw(pixels: Pixels, size: int) -> tuple[PreparedRequest, ...]:
    starts = range(0, len(pixels) - size + 1, size)
    return tuple(raw_request("pixels", pixels[start : start + size]) for start in itertools.islice(starts, 8))


def _measure(
    options: CheckOptions,
    server: ServerProcess,
    bare: _BareMethod,
    name: str,
    size: int,
    requests: tuple[PreparedRequest, ...],
    seconds: float,
) -> dict[str, Any]:
    clients = min(256, max(_OUTSTANDING, _OUTSTANDING * options.max_batch // size))
    before = bare.measure(options.max_batch, seconds / 2)
    same = bare.measure(size, seconds / 2)
    details: dict[str, Any] = {}
    run_load(LoadPlan(server.address, requests, seconds, clients))  # streams are made, steps are recorded
    with profiled(options, name, details):
        outcomes = run_load(LoadPlan(server.address, requests, seconds, clients), options.processes)
    closed = summary(outcomes, seconds / 4)
    after = bare.measure(options.max_batch, seconds / 2)
    library = (before.images_per_second + after.images_per_second) / 2
    rate = max(closed["images_per_second"] / size / 2, 1 / seconds)
    calm = run_load(LoadPlan(server.address, requests, 2 * seconds, 512, rate), options.processes)
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
        **details,
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
        found.note(
            name, f"{share:.2f} of the library in full batches, {same:.2f} in batches that small", share
        )
        found.note("  p99 at half that load", latency, steps)
