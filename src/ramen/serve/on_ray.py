"""The service on Ray Serve: engines on several GPUs or machines, behind the same HTTP API.

Each engine is a deployment of its own with one replica, which has a part of the streams and a locked folder
for their states. If it ends, Ray starts it again, with that folder; its streams wait for it. From a config
file of a cluster::

    applications:
      - name: ramen
        import_path: ramen.serve.on_ray:build
        args:
          model: ViT-B-16/openai
          classes_file: /shared/classes.txt
          tokens: /shared/tokens.json
          engine: {state: "/shared/streams"}
          scaling: {replicas: 4, gpus_per_replica: 1}
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, field_validator
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve import Application
from ray.serve.exceptions import BackPressureError, RayServeException, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from ramen.client.operations import (
    FailedError,
    Operation,
    Reply,
    ServerError,
    ServerOverloadedError,
    StoppingError,
)
from ramen.data.drawings.shapes import OBJECTS
from ramen.methods._registry import load_plugins
from ramen.models.classifier import ZeroShotClassifier
from ramen.models.names import TINY, full_name
from ramen.models.options import class_names
from ramen.serve.engine.state_folder import when_free
from ramen.serve.http.app import create_app, log_to_stderr
from ramen.serve.http.server import bind, url_of
from ramen.serve.serve_run import ServeRequest, classifier_for, engine_for
from ramen.serve.settings import EngineSettings, HttpSettings
from ramen.serve.shards import NO_AUTOSCALING, Shard, Shards, lost, unavailable
from ramen.utils import checks
from ramen.utils.signals import stop_on_signals

NAME = "ramen"
_GRACE = 30.0  # seconds beyond its deadline that an answer is waited for: it may be being computed
_HEALTH_PERIOD = 5.0  # seconds: an engine that has ended is started again after at most that
_STOPPING = 60.0  # seconds that an engine has to answer what it has accepted, and to write its states
_FRONT_CPUS = 1  # for what Ray itself runs
_LOGGING = {"enable_access_log": False}  # the HTTP application has a log of its own

_log = logging.getLogger("ramen")
Load = Callable[[], ZeroShotClassifier]


@dataclass(frozen=True)
class Scaling:
    """How many engines there are, and what each of them gets.

    Attributes:
        replicas: Engines. If there were others before, streams move when the service starts.
        gpus_per_replica: GPUs of each; a fraction lets several share one.
        cpus_per_replica: CPU cores of each.
        ingress_replicas: Processes that take HTTP requests. ``/metrics`` and ``/v1/statistics`` come from any
            one of them, and each counts from its own start.
    """

    replicas: int = 1
    gpus_per_replica: float = 0.0
    cpus_per_replica: float = 1.0
    ingress_replicas: int = 1

    def __post_init__(self) -> None:
        checks.integer("replicas", self.replicas, 1)
        checks.number("gpus_per_replica", self.gpus_per_replica, 0)
        checks.number("cpus_per_replica", self.cpus_per_replica, 0)
        checks.integer("ingress_replicas", self.ingress_replicas, 1)


# -- an engine, in a process that Ray starts ----------------------------------------------------------


class RayEngine:
    """Answers for the streams of one shard.

    Errors of the engine are returned, not raised: Ray would wrap them and log each of them with a traceback.

    Args:
        load: Returns the classifier, in place of the model that the request names; importable.
        request: What is served.
        shard: Which of how many engines this is.
    """

    def __init__(self, load: Load | None, request: ServeRequest, shard: tuple[int, int]) -> None:
        load_plugins(request.imports)
        classifier = classifier_for(request) if load is None else load()
        make = partial(engine_for, request, classifier, shard)
        # the engine whose place this one takes may still be writing its states
        self._engine = when_free(make, 2 * _STOPPING)
        self._closing: asyncio.Future[None] | None = None
        _log.info("engine %d of %d serves %s", shard[0] + 1, shard[1], self._engine.model.name)

    async def call(self, operation: Operation[Reply]) -> Reply | ServerError:
        """Do something; if the caller is cancelled, images that still wait are dropped."""
        try:
            return await self._engine.call(operation)
        except ServerError as error:
            return error

    def check_health(self) -> None:
        """Called by Ray now and then: a process whose engine has ended is replaced."""
        if self._closing is None and not self._engine.ready():
            raise RuntimeError("the engine has ended")

    async def __del__(self) -> None:
        """Called by Ray before it ends the process: write all states and leave the folder."""
        if hasattr(self, "_engine") and self._closing is None:
            self._closing = asyncio.ensure_future(self._engine.close())
            await self._closing


# -- in the HTTP application --------------------------------------------------------------------------


class RayShard(Shard):
    """One engine, asked through Ray.

    Args:
        handle: The deployment of the engine.
    """

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle.options(method_name="call")

    async def send(self, operation: Operation[Reply], until: float) -> Reply:
        """Wait until the engine is there, and ask it once."""
        sent = False
        try:
            async with asyncio.timeout_at(until) as limit, self._handle.choose_replica() as chosen:
                sent = True
                limit.reschedule(until + _GRACE)
                outcome = await _answer(self._handle.dispatch(chosen, operation))
        except ReplicaUnavailableError:  # it had gone before anything was sent
            raise StoppingError("the engine is being stopped") from None
        except BackPressureError as error:
            message = "too many requests are waiting for an engine"
            raise ServerOverloadedError(message, error.retry_after_s or 1.0) from error
        except RayTaskError as error:  # a defect
            _log.error("an engine failed on %r: %s", operation.name, error)
            raise FailedError("the request could not be answered") from error
        except (TimeoutError, RayError, RayServeException) as error:
            raise (lost() if sent else unavailable()) from error
        if isinstance(outcome, ServerError):
            raise outcome
        reply: Reply = outcome
        return reply


async def _answer(response: Any) -> Any:
    """What an engine answers; if the caller is cancelled, so is the work."""
    try:
        return await response
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            response.cancel()
        raise


class HttpIngress:
    """What Ray's HTTP proxies pass requests on to: the same application as on one machine.

    Args:
        engines: A deployment each.
        settings: Limits of requests, and who may send them.
        log_format: "json" or "text".
    """

    def __init__(self, engines: list[DeploymentHandle[Any]], settings: HttpSettings, log_format: str) -> None:
        log_to_stderr(log_format)
        self._shards, self._settings = [RayShard(engine) for engine in engines], settings

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Ray after the constructor."""
        return create_app(await Shards.connect(self._shards), self._settings)


# -- the application ----------------------------------------------------------------------------------


def application(request: ServeRequest, scaling: Scaling, load: Load | None = None) -> Application:
    """Engines with the HTTP application before them.

    Args:
        request: What to serve; its host and port are those of Ray's proxies, and not looked at here.
        scaling: How many engines there are.
        load: See ``RayEngine``.
    """
    if request.engine.state is None and scaling.replicas > 1:
        raise ValueError(
            f"{scaling.replicas} replicas need a state that all machines reach: a shared folder (--state); "
            "without it, streams would begin anew whenever one of them is started again"
        )
    engine = serve.deployment(
        ray_actor_options={"num_cpus": scaling.cpus_per_replica, "num_gpus": scaling.gpus_per_replica},
        # The engine refuses what is too much, with an error that says so; Ray would let it wait.
        max_ongoing_requests=request.engine.max_queue_images + 1000,
        graceful_shutdown_timeout_s=_STOPPING,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config=_LOGGING,
        health_check_period_s=_HEALTH_PERIOD,
        num_replicas=1,
    )(RayEngine)
    ingress = serve.deployment(
        name="http",
        num_replicas=scaling.ingress_replicas,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=request.http.max_timeout_ms / 1000 + 5,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config=_LOGGING,
    )(serve.ingress()(HttpIngress))
    engines = [
        engine.options(name=engine_name(number)).bind(load, request, (number, scaling.replicas))
        for number in range(scaling.replicas)
    ]
    return ingress.bind(engines, request.http, request.log_format)


def engine_name(number: int) -> str:
    """The name of an engine's deployment."""
    return f"engine-{number + 1}"


class RayServeArguments(BaseModel):
    """The ``args`` of the application in a config file; the fields are those of ``ramen serve``."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model: str = TINY
    classes: list[str] | None = None
    classes_file: Path | None = None
    templates: str | tuple[str, ...] = "ensemble"
    method: str = "ramen"
    parameters: dict[str, Any] = Field(default_factory=dict)
    imports: tuple[str, ...] = ()
    device: str | None = None
    dtype: str | None = None
    tokens: Path | None = None
    no_auth: bool = False
    log_format: str = "json"
    engine: EngineSettings = Field(default_factory=EngineSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    scaling: Scaling = Field(default_factory=Scaling)

    @field_validator("engine", "http", "scaling", mode="before")
    @classmethod
    def _check_names(cls, given: Any, info: Any) -> Any:
        """Refuse a name that there is not: a typing error would otherwise go unnoticed."""
        kind = cls.model_fields[info.field_name].annotation
        known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
        unknown = sorted(set(given) - known) if isinstance(given, Mapping) else []
        if {"min_replicas", "max_replicas"} & set(unknown):  # of version 0.2
            raise ValueError(NO_AUTOSCALING)
        if unknown:
            raise ValueError(
                f"{info.field_name} has no {', '.join(unknown)}; it has {', '.join(sorted(known))}"
            )
        return given

    def request(self) -> ServeRequest:
        """What to serve; ValueError if it makes no sense."""
        request = ServeRequest(
            classes=self._class_names(),
            model=full_name(self.model),
            http=replace(self.http, tokens=self.tokens or self.http.tokens),
            **{name: getattr(self, name) for name in ("templates", "method", "parameters", "imports")},
            **{name: getattr(self, name) for name in ("device", "dtype", "no_auth", "log_format", "engine")},
        )
        request.check()
        return request

    def _class_names(self) -> tuple[str, ...] | None:
        if self.model == TINY and self.classes is None and self.classes_file is None:
            return tuple(OBJECTS)
        return class_names(self.classes, self.classes_file, self.model)


def build(args: RayServeArguments) -> Application:
    """The application of a config file: ``import_path: ramen.serve.on_ray:build``."""
    return application(args.request(), args.scaling)


# -- ramen serve --ray --------------------------------------------------------------------------------


def serve_on_ray(
    request: ServeRequest, announce: Callable[[str], None], *, scaling: Mapping[str, Any]
) -> None:
    """Serve until a signal comes; then answer what was accepted, store what was learned, and stop.

    Args:
        request: What to serve.
        announce: Called with the address once images can be answered.
        scaling: Fields of ``Scaling``. Without "gpus_per_replica", each has a GPU if this machine has one.
    """
    gpus = int(torch.cuda.is_available() and (request.device or "cuda").startswith("cuda"))
    engines = Scaling(**{"gpus_per_replica": gpus, **scaling})
    request.check()
    request = _with_full_names(request)
    served = application(request, engines)
    log_to_stderr(request.log_format)
    with bind(request.host, request.port) as bound:  # whether it is free, before anything takes long
        url, port = url_of(bound), bound.getsockname()[1]
    _start_ray(engines)
    try:
        with stop_on_signals(lambda: _log.info("stopping")) as stopping:  # Ray has handlers of its own
            try:
                serve.start(proxy_location="HeadOnly", http_options={"host": request.host, "port": port})
                serve.run(served, name=NAME, route_prefix="/")
                announce(url)
                stopping.event.wait()
            finally:
                serve.shutdown()
    finally:
        ray.shutdown()


def _with_full_names(request: ServeRequest) -> ServeRequest:
    """The same files from wherever engines run."""
    tokens, state = request.http.tokens, request.engine.state
    full = None if state is None else str(Path(state).expanduser().absolute())
    return replace(
        request,
        engine=replace(request.engine, state=full),
        http=replace(request.http, tokens=None if tokens is None else Path(tokens).absolute()),
    )


def _start_ray(scaling: Scaling) -> None:
    """Join the cluster that RAY_ADDRESS names; without it, start Ray on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless asked for
    if os.environ.get("RAY_ADDRESS"):
        ray.init()
        return
    needed = scaling.replicas * scaling.cpus_per_replica + _FRONT_CPUS
    ray.init(num_cpus=max(os.cpu_count() or 1, int(needed) + 1), include_dashboard=False)
