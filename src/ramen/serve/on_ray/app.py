"""The application for Ray Serve, from Python or from a config file of a cluster.

In a config file::

    applications:
      - name: ramen
        import_path: ramen.serve.on_ray.app:build
        args:
          model: ViT-B-16/openai
          classes_file: /shared/classes.txt
          tokens: /shared/tokens.json
          engine: {state: "/shared/streams"}
          scaling: {min_replicas: 1, max_replicas: 8, gpus_per_replica: 1}
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from ray import serve
from ray.serve import Application, Deployment
from ray.serve.config import AutoscalingConfig

from ramen.data.drawings.shapes import OBJECTS
from ramen.models.classifier import ZeroShotClassifier
from ramen.models.names import TINY, full_name, load_classifier, may_bring_classes, recorded_name
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.http.settings import HttpSettings
from ramen.serve.on_ray.ingress import ASGI_INGRESS
from ramen.serve.on_ray.replica import ReplicaPlan, StreamReplica
from ramen.serve.on_ray.scaling import Scaling
from ramen.serve.serve_run import ServeRequest

NAME = "ramen"
_HEALTH_PERIOD = 5.0  # seconds: a replica that has ended is replaced after at most that
_STOPPING = 60.0  # seconds that a replica has to answer what it has accepted, and to write its states
_ROUTER = "ramen.serve.on_ray.router.StreamRouter"
_LOGGING = {"enable_access_log": False}  # the HTTP front has a log of requests of its own


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
            templates=self.templates,
            method=self.method,
            parameters=self.parameters,
            imports=self.imports,
            device=self.device,
            dtype=self.dtype,
            no_auth=self.no_auth,
            log_format=self.log_format,
            engine=self.engine,
            http=replace(self.http, tokens=self.tokens or self.http.tokens),
        )
        request.check()
        return request

    def _class_names(self) -> tuple[str, ...] | None:
        if (self.classes is None) == (self.classes_file is None):
            if self.classes is None and self.model == TINY:
                return tuple(OBJECTS)
            if self.classes is None and may_bring_classes(self.model):
                return None
            raise ValueError("either classes or classes_file must be given")
        if self.classes is not None:
            return tuple(self.classes)
        assert self.classes_file is not None
        lines = self.classes_file.read_text(encoding="utf-8").splitlines()
        return tuple(line.strip() for line in lines if line.strip())


def build(args: RayServeArguments) -> Application:
    """The application of a config file: ``import_path: ramen.serve.on_ray.app:build``."""
    return application(args.request(), args.scaling)


def application(
    request: ServeRequest, scaling: Scaling, load: Callable[[], ZeroShotClassifier] | None = None
) -> Application:
    """Replicas with the HTTP front before them.

    Args:
        request: What to serve; its host and port are those of Ray's proxies, and not looked at here.
        scaling: How many replicas there are.
        load: Returns the classifier, in place of the model that the request names. It must be importable in
            the replicas.
    """
    check_state(request, scaling)
    plan = ReplicaPlan(
        load or partial(load_classifier, request),
        request.engine,
        name=recorded_name(request.model),
        method=request.method,
        parameters=dict(request.parameters),
        imports=tuple(request.imports),
    )
    replicas = deployment_of_replicas(request, scaling).bind(plan)
    return deployment_of_ingress(request, scaling).bind(replicas, request.http, request.log_format)


def check_state(request: ServeRequest, scaling: Scaling) -> None:
    """ValueError if replicas would not share what their streams learn."""
    if request.engine.state is None and scaling.most > 1:
        raise ValueError(
            f"{scaling.most} replicas need a state that all of them reach: a shared folder "
            "(--state); without it, a stream would begin anew on each of them"
        )


def deployment_of_replicas(request: ServeRequest, scaling: Scaling) -> Deployment:
    """The deployment that computes."""
    options: dict[str, Any] = {"num_replicas": scaling.replicas or 1}
    if scaling.min_replicas is not None and scaling.max_replicas is not None:
        options = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=scaling.min_replicas,
                max_replicas=scaling.max_replicas,
                target_ongoing_requests=request.engine.max_batch,  # fewer would not fill a batch
            )
        }
    make = serve.deployment(
        name="streams",
        ray_actor_options={"num_cpus": scaling.cpus_per_replica, "num_gpus": scaling.gpus_per_replica},
        # The engine refuses what is too much, with an error that says so; Ray would let it wait.
        max_ongoing_requests=request.engine.max_queue_images + 1000,
        graceful_shutdown_timeout_s=_STOPPING,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config=_LOGGING,
        health_check_period_s=_HEALTH_PERIOD,
        request_router_config={"request_router_class": _ROUTER},
        **options,
    )
    return make(StreamReplica)


def deployment_of_ingress(request: ServeRequest, scaling: Scaling) -> Deployment:
    """The deployment that speaks HTTP."""
    make = serve.deployment(
        name="http",
        num_replicas=scaling.ingress_replicas,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=request.http.max_timeout_ms / 1000 + 5,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config=_LOGGING,
    )
    return make(ASGI_INGRESS)
