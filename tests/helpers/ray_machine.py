"""A small Ray of its own for tests, and the service on it."""

import os
import random
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ramen import testing
from ramen.models.classifier import ZeroShotClassifier
from ramen.serve.serve_run import ServeRequest
from ramen.serve.settings import EngineSettings, HttpSettings
from tests.serve.engine.engines import PARAMETERS

SETTINGS: dict[str, Any] = {
    "max_batch": 4,
    "max_delay_ms": 1.0,
    "max_queue_images": 64,
    "invariant": True,
    "save_every": "batch",
}


@contextmanager
def ray_machine() -> Iterator[int]:
    """Ray and its HTTP proxy, at free ports and in a folder of its own; yields the port of the proxy."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray import serve

    folder = tempfile.mkdtemp(prefix="ray-")  # short: it has sockets
    port = _free_port()
    try:
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=folder,
        )
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        yield port
    finally:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    """A port that neither the system nor Ray gives to anybody before the proxy listens there."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as bound, suppress(OSError):
            bound.bind(("127.0.0.1", port))
            return port


def small_request(state: Path, **settings: Any) -> ServeRequest:
    """A service of the small classifier."""
    return ServeRequest(
        classes=testing.small_classifier().classes,
        model="small",
        parameters=PARAMETERS,
        no_auth=True,
        engine=EngineSettings(**{**SETTINGS, "state": str(state), **settings}),
        http=HttpSettings(),
    )


def run_application(
    request: ServeRequest,
    *,
    replicas: int = 2,
    load: Callable[[], ZeroShotClassifier] | None = testing.small_classifier,
) -> list[Any]:
    """Run a service on the Ray that is there; returns what asks its engines."""
    from ray import serve

    from ramen.serve.on_ray import NAME, RayShard, Scaling, application, engine_name

    scaling = Scaling(replicas=replicas, cpus_per_replica=0.5)
    serve.run(application(request, scaling, load), name=NAME, route_prefix="/")
    return [RayShard(serve.get_deployment_handle(engine_name(n), NAME)) for n in range(replicas)]
