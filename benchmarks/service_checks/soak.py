"""R16: a mixed load for a long time. Nothing fails, and it does not become slower."""

from collections.abc import Sequence

from service_checks.http_connection import PreparedRequest, prepare
from service_checks.load import LoadPlan, Outcome, percentile, run_load, summary
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import (
    file_request,
    jpeg,
    json_request,
    mixed_images,
    multipart_request,
    raw_request,
)
from service_checks.server_process import ramen_server

TITLE = "a mixed load"
_DRIFT = 0.10
_STREAMS = 6
_CLIENTS = 4


def run(options: CheckOptions, seconds: float | None = None) -> Findings:
    """Send for so many seconds half of what the server can answer."""
    seconds = (1200.0 if options.full else 3 * options.seconds) if seconds is None else seconds
    requests = _mixed_requests(options)
    with ramen_server(options, state=str(options.folder / "soak")) as server:
        probe = run_load(LoadPlan(server.address, requests, max(2.0, seconds / 20), _CLIENTS))
        spent = max(one.ended for one in probe) - min(one.due for one in probe)
        rate = 0.5 * len(probe) / spent
        outcomes = run_load(LoadPlan(server.address, requests, seconds, 64, rate))
        is_alive, memory = server.alive, server.memory_mib()
    found = Findings("R16")
    found.note("load", f"{len(outcomes):,} requests in {seconds:.0f} s, half of what it can answer", rate)
    found.expect_zero("answers other than 200", sum(one.status != 200 for one in outcomes), len(outcomes))
    found.expect_alive(is_alive)
    first, last = _quarters(outcomes)
    drift = last / first - 1
    found.note("p99 of the first quarter after the warm-up", f"{first:.1f} ms", first)
    measured = f"{100 * drift:+.1f} %"
    found.expect("p99 of the last quarter, beside that", "less than +10 %", drift < _DRIFT, measured, drift)
    found.note("memory in the end", f"{memory:.0f} MiB", memory)
    found.details = {"summary": summary(outcomes), "requests_per_second": rate}
    return found


def _quarters(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """p99 in milliseconds of the first and the last quarter, after a tenth that is the warm-up."""
    ordered = sorted(outcomes, key=lambda one: one.due)
    counted = [1000 * one.latency for one in ordered[len(ordered) // 10 :] if one.status == 200]
    quarter = max(1, len(counted) // 4)
    return percentile(counted[:quarter], 99), percentile(counted[-quarter:], 99)


def _mixed_requests(options: CheckOptions) -> tuple[PreparedRequest, ...]:
    pixels = mixed_images(max(8, options.max_batch), options.image_size)
    files = [jpeg(image) for image in pixels[:4]]
    requests: list[PreparedRequest] = []
    for number in range(_STREAMS):
        stream = f"stream-{number}"
        requests += [
            raw_request(stream, pixels[:8]),
            file_request(stream, files[number % 4]),
            raw_request(stream, pixels[: options.max_batch]),
            json_request(stream, [("a", files[0]), ("b", files[1])]),
            multipart_request(stream, files),
            raw_request(stream, pixels[number : number + 1], "?probabilities=all"),
            prepare("GET", f"/v1/streams/{stream}"),
        ]
    return (*requests, *(prepare("GET", path) for path in ("/v1/statistics", "/metrics", "/healthz")))
