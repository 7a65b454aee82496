"""Asks a profiled server what it did while something was measured."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service_checks.options import CheckOptions
from service_checks.server_process import ServerProcess, ramen_server

_PATIENCE = 10.0  # seconds until a profile must have been written


@contextmanager
def profiled_server(
    options: CheckOptions, **settings: str | int | float | bool | None
) -> Iterator[ServerProcess]:
    """``ramen serve``, which looks at its threads if the options ask for it.

    Args:
        options: Of the run.
        settings: Of the server.
    """
    start: Any = ramen_server  # its own keyword is not one of the settings
    if not options.profile:
        with start(options, **settings) as server:
            yield server
        return
    os.environ["RAMEN_PROFILE"] = str(options.folder)
    try:
        with start(options, module="service_checks.profiled_server", **settings) as server:
            yield server
    finally:
        del os.environ["RAMEN_PROFILE"]


@contextmanager
def profiled(options: CheckOptions, name: str, details: dict[str, Any]) -> Iterator[None]:
    """A block in which the server looks at its threads; what it saw becomes ``details["profile"]``.

    Args:
        options: Of the run.
        name: Of what is measured.
        details: Where it is noted.
    """
    if not options.profile:
        yield
        return
    window, written = options.folder / "window", options.folder / "profile.json"
    window.write_text(name)
    yield
    window.write_text("")
    details["profile"] = _wait_for(written, name)


def _wait_for(path: Path, name: str) -> Any:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            found = json.loads(path.read_text())
        except OSError:
            found = {}
        if name in found:
            return found[name]
        time.sleep(0.05)
    raise RuntimeError(f"the server wrote no profile of {name!r}")
