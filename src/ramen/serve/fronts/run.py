"""Serves an engine through several HTTP processes until a signal comes."""

import asyncio
import importlib.util
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ramen.serve.engine.engine import Engine
from ramen.serve.fronts.front_processes import FrontProcesses, FrontsFailedError
from ramen.serve.http.server import StopFailedError
from ramen.serve.http.settings import HttpSettings
from ramen.serve.shared_memory import SharedRegion
from ramen.utils.signals import stop_on_signals


def run_fronts(
    engine: Engine,
    settings: HttpSettings,
    regions: Sequence[SharedRegion],
    bound: socket.socket,
    log_format: str,
    announce: Callable[[], None],
) -> None:
    """Serve until a signal comes; a second signal ends the process at once, without storing anything more.

    Args:
        engine: Answers; closed at the end.
        settings: Limits of requests, and who may send them.
        regions: Memory for the images of each front; the engine knows it.
        bound: Where to listen.
        log_format: "json" or "text".
        announce: Called once all fronts listen.
    """
    fronts = FrontProcesses(engine, settings, regions, bound, log_format)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        stop = partial(runner.get_loop().call_soon_threadsafe, fronts.stop)
        with stop_on_signals(stop, again=lambda number: os._exit(128 + number)):
            try:
                runner.run(fronts.run(announce))
            except* FrontsFailedError as group:
                runner.run(engine.close())
                raise group.exceptions[0] from None
            try:
                runner.run(engine.close())
            except Exception as error:
                message = f"the server stopped, but not everything could be stored: {error}"
                raise StopFailedError(message) from error


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """That of uvloop, if it is installed, as the web server uses it."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    uvloop: Any = importlib.import_module("uvloop")
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
