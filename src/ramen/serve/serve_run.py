"""``ramen serve`` without its command line: a model behind HTTP until a signal stops it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramen.models import prompts
from ramen.serve.engine.engine import Engine
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.http.access import check_access
from ramen.serve.http.app import create_app
from ramen.serve.http.local_backend import LocalBackend
from ramen.serve.http.request_log import FORMATS, log_to_stderr
from ramen.serve.http.server import bind, run_server, url_of
from ramen.serve.http.settings import HttpSettings
from ramen.serve.http.tokens import TokenFile
from ramen.serve.model_loading import TINY, load_classifier
from ramen.serve.store.save_times import SaveTimes
from ramen.utils import checks

# Seconds after which a thread that runs Python gives others a turn. One thread reads requests; another one
# computes, and asks for a turn after each operation of torch: at Python's own 5 ms it would mostly wait.
_TURN = 1e-4


@dataclass(frozen=True)
class ServeRequest:
    """What to serve, to whom, and where.

    Attributes:
        classes: Class names of streams that do not set their own.
        model: A form of ``ramen.models.by_name``.
        templates: A set of prompt templates, or templates.
        method: A method's name.
        parameters: Of the method, in place of its own choices.
        device: Where to compute; by default a GPU if there is one.
        dtype: Of the encoder's weights; by default float16 on a GPU.
        host: The address to listen at.
        port: The port; 0 for any that is free.
        no_auth: Whether to let everybody in who reaches the address, which must then be a loopback address.
        log_format: "json" or "text".
        engine: How images are batched and what streams may keep.
        http: Limits of requests, and the file of tokens.
    """

    classes: Sequence[str]
    model: str = TINY
    templates: str | tuple[str, ...] = "ensemble"
    method: str = "ramen"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    dtype: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    no_auth: bool = False
    log_format: str = "json"
    engine: EngineSettings = field(default_factory=EngineSettings)
    http: HttpSettings = field(default_factory=HttpSettings)

    def check(self) -> None:
        """ValueError for what can be known to be wrong before a model is loaded."""
        check_access(self.host, self.http.tokens, no_auth=self.no_auth)
        if self.http.tokens is not None:
            TokenFile(self.http.tokens)
        checks.choice("log_format", self.log_format, FORMATS)
        SaveTimes(self.engine.save_every)
        prompts.check_classes(self.classes)
        prompts.check_templates(self.templates)


def serve(request: ServeRequest, announce: Callable[[str], None]) -> None:
    """Serve until a signal comes, then finish what was accepted and store what was learned.

    Args:
        request: What to serve.
        announce: Called with the address once images can be answered.
    """
    request.check()
    sys.setswitchinterval(_TURN)
    with bind(request.host, request.port) as bound:  # before the model is loaded, which takes long
        log_to_stderr(request.log_format)
        url = url_of(bound)
        engine = Engine(
            load_classifier(request),
            request.engine,
            name=request.model,
            method=request.method,
            parameters=request.parameters,
        )
        with engine:
            app = create_app(LocalBackend(engine), request.http)
            run_server(app, bound, lambda: announce(url))
