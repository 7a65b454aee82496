"""``ramen serve --ray``: starts Ray Serve on this machine, or uses a cluster, until a signal comes."""

import logging
import os
from collections.abc import Callable

import ray
from ray import serve

from ramen.serve.http.request_log import log_to_stderr
from ramen.serve.http.server import bind, url_of
from ramen.serve.on_ray.app import NAME, application, check_state
from ramen.serve.on_ray.scaling import Scaling
from ramen.serve.serve_run import ServeRequest
from ramen.serve.stopping import stop_on_signals

_FRONT_CPUS = 1  # for what Ray itself runs

_log = logging.getLogger("ramen")


def serve_on_ray(request: ServeRequest, scaling: Scaling, announce: Callable[[str], None]) -> None:
    """Serve until a signal comes; then answer what was accepted, store what was learned, and stop.

    Args:
        request: What to serve.
        scaling: How many replicas there are.
        announce: Called with the address once images can be answered.
    """
    request.check()
    check_state(request, scaling)
    log_to_stderr(request.log_format)
    with bind(request.host, request.port) as bound:  # whether it is free, before anything takes long
        url, port = url_of(bound), bound.getsockname()[1]
    with stop_on_signals(lambda: _log.info("stopping")) as stopping:
        _start_ray(scaling)
        try:
            serve.start(proxy_location="HeadOnly", http_options={"host": request.host, "port": port})
            serve.run(application(request, scaling), name=NAME, route_prefix="/")
            announce(url)
            stopping.event.wait()
        finally:
            serve.shutdown()
            ray.shutdown()


def _start_ray(scaling: Scaling) -> None:
    """Join the cluster that RAY_ADDRESS names; without it, start Ray on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless asked for
    if os.environ.get("RAY_ADDRESS"):
        ray.init()
        return
    needed = scaling.most * scaling.cpus_per_replica + _FRONT_CPUS
    ray.init(
        num_cpus=max(os.cpu_count() or 1, int(needed) + 1),
        include_dashboard=False,
        _node_ip_address="127.0.0.1",  # nothing of Ray is reached from elsewhere
    )
