"""The HTTP front as a deployment: the same application as on one machine, in front of all replicas."""

from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from ramen.serve.http.app import create_app, log_to_stderr
from ramen.serve.http.settings import HttpSettings
from ramen.serve.on_ray.backend import RayBackend


class HttpIngress:
    """What Ray's HTTP proxies pass requests on to.

    Args:
        replicas: The deployment of ``StreamReplica``.
        settings: Limits of requests, and who may send them.
        log_format: "json" or "text".
    """

    def __init__(self, replicas: DeploymentHandle[Any], settings: HttpSettings, log_format: str) -> None:
        log_to_stderr(log_format)
        self._replicas, self._settings = replicas, settings

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Ray after the constructor."""
        return create_app(await RayBackend.connect(self._replicas), self._settings)


ASGI_INGRESS = serve.ingress()(HttpIngress)
