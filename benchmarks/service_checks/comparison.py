"""Ours beside a plain FastAPI + open_clip server and LitServe: the same weights, images and load, in one run.

Servers run one at a time. The load is one JPEG file per request as multipart/form-data, in a closed loop,
and then ten times what each has answered, in an open loop.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ramen.models.names import parts_of
from service_checks.http_connection import PreparedRequest
from service_checks.load import LoadPlan, most_outstanding, run_load, summary
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import jpeg, mixed_images, multipart_request
from service_checks.server_process import ServerProcess, classes_file, free_port, ramen_server, sampled

TITLE = "beside other servers, one JPEG file per request"
_PATIENCE = 20.0  # seconds that clients wait for an answer under overload
_CONNECTIONS = 1500


def run(options: CheckOptions, seconds: float | None = None, clients: int = 32) -> Findings:
    """Measure all servers, each load for so many seconds, with so many clients in the closed loop."""
    seconds = options.seconds if seconds is None else seconds
    found, rows = Findings("comparison"), {}
    for name, start, path in _servers(options):
        requests = tuple(
            multipart_request("photographs", [jpeg(image)], path)
            for image in mixed_images(16, options.image_size)
        )
        with start() as server:
            rows[name] = _measure(options, server, requests, seconds, clients)
            server.kill()  # what still waits there is of no use
    found.details = rows
    if importlib.util.find_spec("litserve") is None:
        found.note("LitServe", "not installed")
    for name, row in rows.items():
        _note(found, name, row)
    others = [row["usual"] for name, row in rows.items() if not name.startswith("ramen")]
    own = rows["ramen serve, zero-shot"]
    rate = own["usual"]["images_per_second"]
    fastest = max(row["images_per_second"] for row in others)
    quickest = min(row["p99_ms"] for row in others)
    what = "images per second, zero-shot, beside the fastest other"
    found.expect_at_least(what, rate / max(fastest, 1e-9), 1.0, "times")
    what = "p99, zero-shot, beside the quickest other"
    found.expect_at_most(what, own["usual"]["p99_ms"] / quickest, 1.0, "times", ",.2f")
    kept = own["overload"]["images_per_second"] / max(rate, 1e-9)
    found.expect_at_least("of its own throughput that it keeps at ten times the load", kept, 0.8)
    return found


def _servers(options: CheckOptions) -> Sequence[tuple[str, Callable[[], ServerProcess], str]]:
    """Names, how to start them, and the path that takes images; none for ours."""
    other = partial(_other_server, options)
    servers = [("FastAPI + open_clip", partial(other, "service_checks.plain_server"), "/predict")]
    if importlib.util.find_spec("litserve") is not None:
        servers.append(("LitServe", partial(other, "service_checks.litserve_server"), "/predict"))
    for name, method in (("zero-shot", "ensemble"), ("adapting", "ramen")):
        servers.append((f"ramen serve, {name}", partial(ramen_server, options, method=method), ""))
    return servers


def _other_server(options: CheckOptions, module: str) -> ServerProcess:
    architecture, pretrained = parts_of(options.model)
    port = free_port()
    given = [architecture, pretrained or "", options.device, options.dtype, port, classes_file(options)]
    command = [sys.executable, "-m", module, *map(str, given), str(options.max_batch)]
    return ServerProcess(command, port, options.folder / f"server-{port}.log", ready_path="/health")


def _measure(
    options: CheckOptions,
    server: ServerProcess,
    requests: tuple[PreparedRequest, ...],
    seconds: float,
    clients: int,
) -> dict[str, Any]:
    run_load(LoadPlan(server.address, requests, min(2.0, seconds), clients), options.processes)
    with sampled(server.family_mib, 0.5) as calm:
        outcomes = run_load(LoadPlan(server.address, requests, seconds, clients), options.processes)
    usual = summary(outcomes, 1.0)
    rate = max(1.0, 10 * usual["images_per_second"])
    plan = LoadPlan(server.address, requests, seconds, _CONNECTIONS, rate, patience=_PATIENCE)
    with sampled(server.family_mib, 0.5) as heavy:
        outcomes = run_load(plan, options.processes)
    overload = summary(outcomes, 1.0)
    return {
        "usual": usual,
        "overload": overload,
        "offered_ratio": overload["offered_requests_per_second"] / max(usual["images_per_second"], 1e-9),
        "most_outstanding": most_outstanding(outcomes),
        "usual_mib": max(calm, default=float("nan")),
        "overload_mib": max(heavy, default=float("nan")),
        "alive": server.alive,
        "start_seconds": server.start_seconds,
    }


def _note(found: Findings, name: str, row: dict[str, Any]) -> None:
    usual, overload = row["usual"], row["overload"]
    found.note(
        f"{name}, usual load",
        f"{usual['images_per_second']:,.0f} images/s, p50 {usual['p50_ms']:.0f} ms, "
        f"p99 {usual['p99_ms']:.0f} ms, {row['usual_mib']:.0f} MiB",
        usual["images_per_second"],
    )
    found.note(
        f"{name}, {row['offered_ratio']:.1f} times that",
        f"{overload['images_per_second']:,.0f} images/s; {100 * overload['answered_share']:.0f} % answered, "
        f"{100 * overload['refused_share']:.0f} % refused, {overload['failed']:,} failed; "
        f"p99 {overload['p99_ms']:,.0f} ms, refusals {overload['refusal_p99_ms']:,.0f} ms; "
        f"{row['most_outstanding']:,} outstanding; {row['overload_mib']:.0f} MiB",
        overload["images_per_second"],
    )
