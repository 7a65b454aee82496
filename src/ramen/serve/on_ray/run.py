"""``ramen serve --ray``: starts Ray Serve on this machine, or uses a cluster, until a signal comes."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray import serve

from ramen.serve.http.app import log_to_stderr
from ramen.serve.http.server import bind, url_of
from ramen.serve.on_ray.app import NAME, application, check_state
from ramen.serve.on_ray.scaling import Scaling
from ramen.serve.serve_run import ServeRequest
from ramen.utils.signals import stop_on_signals

_FRONT_CPUS = 1  # for what Ray itself runs

_log = logging.getLogger("ramen")


def serve_on_ray(
    request: ServeRequest, announce: Callable[[str], None], *, scaling: Mapping[str, Any]
) -> None:
    """Serve until a signal comes; then answer what was accepted, store what was learned, and stop.

    Args:
        request: What to serve.
        announce: Called with the address once images can be answered.
        scaling: Fields of ``Scaling``. Without "gpus_per_replica", each has a GPU if this machine has one.
    """
    replicas = Scaling(**{"gpus_per_replica": _gpus(request.device), **scaling})
    request.check()
    check_state(request, replicas)
    request = _with_full_names(request)
    log_to_stderr(request.log_format)
    with bind(request.host, request.port) as bound:  # whether it is free, before anything takes long
        url, port = url_of(bound), bound.getsockname()[1]
    _start_ray(replicas)
    try:
        with stop_on_signals(lambda: _log.info("stopping")) as stopping:  # Ray has handlers of its own
            try:
                serve.start(proxy_location="HeadOnly", http_options={"host": request.host, "port": port})
                serve.run(application(request, replicas), name=NAME, route_prefix="/")
                announce(url)
                stopping.event.wait()
            finally:
                serve.shutdown()
    finally:
        ray.shutdown()


def _gpus(device: str | None) -> int:
    return int(torch.cuda.is_available() and (device or "cuda").startswith("cuda"))


def _with_full_names(request: ServeRequest) -> ServeRequest:
    """The same files from wherever replicas run."""
    tokens, state = request.http.tokens, request.engine.state
    return replace(
        request,
        engine=replace(
            request.engine, state=None if state is None else str(Path(state).expanduser().absolute())
        ),
        http=replace(request.http, tokens=None if tokens is None else Path(tokens).absolute()),
    )


def _start_ray(scaling: Scaling) -> None:
    """Join the cluster that RAY_ADDRESS names; without it, start Ray on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless asked for
    if os.environ.get("RAY_ADDRESS"):
        ray.init()
        return
    needed = scaling.most * scaling.cpus_per_replica + _FRONT_CPUS
    ray.init(num_cpus=max(os.cpu_count() or 1, int(needed) + 1), include_dashboard=False)
