"""Ours beside a plain FastAPI + open_clip server and LitServe: the same weights, images and load, in one run.

Servers run one at a time. The load is one JPEG file per request as multipart/form-data, in a closed loop,
and then ten times what each has answered, in an open loop.
"""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from ramen.models.names import parts_of
from service_checks.http_connection import PreparedRequest, prepare
from service_checks.load import LoadPlan, most_outstanding, run_load, summary
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import classify_path, jpeg, mixed_images, multipart_request
from service_checks.server_process import ServerProcess, free_port, ramen_server, sampled, serve_arguments

TITLE = "beside other servers, one JPEG file per request"
_PATIENCE = 20.0  # seconds that clients wait for an answer under overload
_CONNECTIONS = 1500


def run(options: CheckOptions, seconds: float | None = None, clients: int = 32) -> Findings:
    """Measure all servers.

    Args:
        options: Of the run.
        seconds: Of each load.
        clients: Of the closed loop.
    """
    seconds = options.seconds if seconds is None else seconds
    found, rows = Findings("comparison"), {}
    for name, start, path in _servers(options):
        with start() as server:
            rows[name] = _measure(options, server, _requests(options, path), seconds, clients)
            server.kill()  # what still waits there is of no use
    found.details = rows
    if importlib.util.find_spec("litserve") is None:
        found.note("LitServe", "not installed")
    for name, row in rows.items():
        _note(found, name, row)
    others = [name for name in rows if not name.startswith("ramen")]
    fastest = max(max(rows[name]["usual"]["images_per_second"] for name in others), 1e-9)
    own = rows["ramen serve, zero-shot"]
    ratio = own["usual"]["images_per_second"] / fastest
    found.expect_at_least("images per second, zero-shot, beside the fastest other", ratio, 1.0, "times")
    quickest = min(rows[name]["usual"]["p99_ms"] for name in others)
    found.expect_at_most(
        "p99, zero-shot, beside the quickest other", own["usual"]["p99_ms"] / quickest, 1.0, "times", 2
    )
    kept = own["overload"]["images_per_second"] / max(own["usual"]["images_per_second"], 1e-9)
    found.expect_at_least("of its own throughput that it keeps at ten times the load", kept, 0.8, "")
    return found


def _servers(options: CheckOptions) -> list[tuple[str, Callable[[], ServerProcess], str]]:
    """Names, how to start them, and the path that takes images."""
    servers = [
        ("FastAPI + open_clip", lambda: _other_server(options, "service_checks.plain_server"), "/predict")
    ]
    if importlib.util.find_spec("litserve") is not None:
        servers.append(
            ("LitServe", lambda: _other_server(options, "service_checks.litserve_server"), "/predict")
        )
    ours = classify_path("photographs")
    servers.append(("ramen serve, zero-shot", lambda: ramen_server(options, method="ensemble"), ours))
    servers.append(("ramen serve, adapting", lambda: ramen_server(options, method="ramen"), ours))
    return servers


def _other_server(options: CheckOptions, module: str) -> ServerProcess:
    architecture, pretrained = parts_of(options.model)
    port = free_port()
    serve_arguments(options, port)  # writes the file of classes
    listed = str(options.folder / "classes.txt")
    arguments = [architecture, pretrained or "", options.device, options.dtype, str(port), listed]
    command = [sys.executable, "-m", module, *arguments, str(options.max_batch)]
    return ServerProcess(command, port, options.folder / f"server-{port}.log", ready_path="/health")


def _requests(options: CheckOptions, path: str) -> tuple[PreparedRequest, ...]:
    requests = []
    for image in mixed_images(16, options.image_size):
        head, _, body = multipart_request("photographs", [jpeg(image)]).data.partition(b"\r\n\r\n")
        kind = head.split(b"Content-Type: ")[1].split(b"\r\n")[0].decode()
        requests.append(prepare("POST", path, body, {"Content-Type": kind}, images=1))
    return tuple(requests)


def _measure(
    options: CheckOptions,
    server: ServerProcess,
    requests: tuple[PreparedRequest, ...],
    seconds: float,
    clients: int,
) -> dict[str, Any]:
    run_load(LoadPlan(server.address, requests, min(2.0, seconds), clients), options.processes)
    with sampled(server.family_mib, 0.5) as calm:
        usual = summary(
            run_load(LoadPlan(server.address, requests, seconds, clients), options.processes), 1.0
        )
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
