"""``ramen serve`` without its command line: a model behind HTTP until a signal stops it."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ramen.methods._registry import load_plugins
from ramen.models import prompts
from ramen.models.classifier import ZeroShotClassifier
from ramen.models.names import TINY, load_classifier, recorded_name
from ramen.serve.engine.engine import Engine
from ramen.serve.http.app import FORMATS, create_app, log_to_stderr
from ramen.serve.http.auth import TokenFile, check_access, is_loopback
from ramen.serve.http.server import bind, run_server, url_of
from ramen.serve.settings import EngineSettings, HttpSettings
from ramen.serve.workers import run_workers
from ramen.state import SaveTimes, dtypes_below
from ramen.utils import checks
from ramen.utils.checks import AUTO
from ramen.utils.files import private_files
from ramen.utils.workers import available_cores, left_out_of_collections

_log = logging.getLogger("ramen")
# Seconds after which a thread that runs Python gives others a turn. One thread reads requests; another one
# computes, and asks for a turn after each operation of torch: at Python's own 5 ms it would mostly wait.
TURN = 1e-4
_MANY_CORES = 16  # from which on there are four workers for a GPU


@dataclass(frozen=True)
class ServeRequest:
    """What to serve, to whom, and where.

    Attributes:
        classes: Class names of streams that do not set their own; None for those that the model brings.
        model: One of the forms of ``ramen.models.names``.
        templates: A set of prompt templates, or templates.
        method: A method's name.
        parameters: Of the method, in place of its own choices.
        imports: Files and modules that bring methods.
        device: Where to compute; by default a GPU if there is one.
        dtype: Of the encoder's weights; by default that of the states there are, and "auto" if there is
            none.
        host: The address to listen at.
        port: The port; 0 for any that is free.
        no_auth: Whether to let everybody in who reaches the address, which must then be a loopback address.
        log_format: "json" or "text".
        workers: How many processes read requests, decode files and write responses, beside the one that
            computes; 0 for that one itself, where a file that crashes a decoder ends it. By default 0 for a
            model on a CPU at a loopback address, 4 for a GPU with at least 16 cores, and else 2.
        engine: How images are batched and what streams may keep.
        http: Limits of requests, and the file of tokens.
    """

    classes: Sequence[str] | None
    model: str = TINY
    templates: str | tuple[str, ...] = "ensemble"
    method: str = "ramen"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    imports: Sequence[str] = ()
    device: str | None = None
    dtype: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    no_auth: bool = False
    log_format: str = "json"
    workers: int | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)
    http: HttpSettings = field(default_factory=HttpSettings)

    def check(self) -> None:
        """ValueError for what can be known to be wrong before a model is loaded."""
        load_plugins(self.imports)
        check_access(self.host, self.http.tokens, no_auth=self.no_auth)
        if self.http.tokens is not None:
            TokenFile(self.http.tokens)
        checks.choice("log_format", self.log_format, FORMATS)
        if self.workers is not None:
            checks.integer("workers", self.workers, 0)
        SaveTimes(self.engine.save_every)
        if self.classes is not None:
            prompts.check_classes(self.classes)
        prompts.check_templates(self.templates)

    def workers_for(self, device: torch.device) -> int:
        """How many workers there are for a model on ``device``."""
        if self.workers is not None:
            return self.workers
        if device.type == "cuda":
            return 4 if available_cores() >= _MANY_CORES else 2
        return 0 if is_loopback(self.host) else 2


def classifier_for(request: ServeRequest) -> ZeroShotClassifier:
    """The model, in the dtype of the states that there are."""
    dtype = request.dtype or next(dtypes_below(request.engine.state), AUTO)
    classifier = load_classifier(replace(request, dtype=dtype))
    _log.info("computing in %s on %s", classifier.fingerprint()["dtype"], classifier.device)
    return classifier


def engine_for(
    request: ServeRequest, classifier: ZeroShotClassifier, shard: tuple[int, int] = (0, 1)
) -> Engine:
    """The engine of a service, or one of several."""
    return Engine(
        classifier,
        request.engine,
        name=recorded_name(request.model),
        method=request.method,
        parameters=request.parameters,
        shard=shard,
    )


def serve(request: ServeRequest, announce: Callable[[str], None]) -> None:
    """Serve until a signal comes, then finish what was accepted and store what was learned.

    Args:
        request: What to serve.
        announce: Called with the address once images can be answered.
    """
    request.check()
    sys.setswitchinterval(TURN)
    # the port comes before the model is loaded, which takes long
    with private_files(), bind(request.host, request.port) as bound:
        log_to_stderr(request.log_format)
        url, classifier = url_of(bound), classifier_for(request)
        workers = request.workers_for(classifier.device)
        engine = engine_for(request, classifier)
        with left_out_of_collections(), engine:
            if workers:
                run_workers(engine, request.http, workers, bound, request.log_format, lambda: announce(url))
            else:
                run_server(create_app(engine, request.http), bound, lambda: announce(url))
