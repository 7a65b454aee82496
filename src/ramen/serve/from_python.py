"""A classifier of this program behind HTTP: until a signal comes, or while a block runs.

Requests are read in this process, whatever the device. ``ramen serve`` has processes for that, and takes a
classifier of one's own as ``--model FILE.py:FUNCTION``.
"""

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramen.models.classifier import ZeroShotClassifier
from ramen.serve.settings import check_packages, settings_of
from ramen.utils.files import private_files

if TYPE_CHECKING:
    from fastapi import FastAPI

_LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class RunningService:
    """A service in a thread of this process.

    Attributes:
        url: Where it answers.
    """

    url: str


def run(
    classifier: ZeroShotClassifier,
    *,
    method: str = "ramen",
    parameters: Mapping[str, Any] | None = None,
    state: str | os.PathLike[str] | None = None,
    host: str = _LOCAL,
    port: int = 8000,
    tokens: str | os.PathLike[str] | None = None,
    name: str = "classifier",
    **settings: Any,
) -> None:
    """Serve a classifier until Ctrl-C or SIGTERM; then answer what was accepted and save what was learned.

    Files and folders that are created meanwhile are for this user alone.

    Args:
        classifier: With any network, on the device where it is to compute.
        method: The name of the method that adapts.
        parameters: Of the method, in place of its own choices.
        state: A folder that keeps what streams learn; without it, that ends with the service.
        host: The address to listen at. Without ``tokens`` it must be a loopback address.
        port: The port; 0 for any that is free.
        tokens: The file of ``ramen token create``; without it, every client on this machine is accepted.
        name: What clients see as the model's name.
        settings: Limits by name, such as ``max_batch=8`` or ``max_streams=100``: the fields of
            ``ramen.serve.settings.EngineSettings`` and ``ramen.serve.settings.HttpSettings``.

    Raises:
        ValueError: A setting makes no sense.
        OSError: The port is in use.
    """
    given = {"parameters": parameters, "state": state, "tokens": tokens, "name": name, **settings}
    with private_files(), _listening(classifier, method, host, port, given) as (app, bound):
        from ramen.serve.http.server import run_server, url_of

        run_server(app, bound, lambda: print(f"serving {name} at {url_of(bound)}", flush=True))


@contextmanager
def running(
    classifier: ZeroShotClassifier,
    *,
    method: str = "ramen",
    parameters: Mapping[str, Any] | None = None,
    state: str | os.PathLike[str] | None = None,
    host: str = _LOCAL,
    port: int = 0,
    tokens: str | os.PathLike[str] | None = None,
    name: str = "classifier",
    **settings: Any,
) -> Iterator[RunningService]:
    """Serve a classifier in a thread while a block runs, for scripts, tests and notebooks.

    At the end of the block, what was accepted is answered and what was learned is saved. Arguments are those
    of ``run``, but the port is any that is free.
    """
    given = {"parameters": parameters, "state": state, "tokens": tokens, "name": name, **settings}
    with _listening(classifier, method, host, port, given) as (app, bound):
        from ramen.serve.http.server import StopFailedError, StoppableServer, url_of

        began = threading.Event()
        server = StoppableServer(app, began.set)

        def serve() -> None:
            try:
                server.run([bound])
            finally:
                began.set()

        thread = threading.Thread(target=serve, name="ramen-http", daemon=True)
        thread.start()
        began.wait()
        try:
            if not server.started:
                raise RuntimeError("the service could not be started: see the log")
            yield RunningService(url_of(bound))
        finally:
            server.stop()
            thread.join()
        if server.lifespan.shutdown_failed:
            raise StopFailedError("the service stopped, but not everything could be saved: see the log")


@contextmanager
def _listening(
    classifier: ZeroShotClassifier, method: str, host: str, port: int, given: dict[str, Any]
) -> Iterator[tuple["FastAPI", socket.socket]]:
    """The application, and the socket that it is to be served at."""
    check_packages()
    from ramen.serve.engine.engine import Engine
    from ramen.serve.http.app import create_app
    from ramen.serve.http.auth import TokenFile, check_access
    from ramen.serve.http.server import bind

    tokens = None if given["tokens"] is None else Path(given["tokens"])
    given["tokens"], given["state"] = tokens, None if given["state"] is None else os.fspath(given["state"])
    parameters, name = given.pop("parameters"), given.pop("name")
    check_access(host, tokens, no_auth=tokens is None)
    if tokens is not None:
        TokenFile(tokens)
    engine, http = settings_of(given)
    with (
        bind(host, port) as bound,
        Engine(classifier, engine, name=name, method=method, parameters=parameters or {}) as answering,
    ):
        yield create_app(answering, http), bound
