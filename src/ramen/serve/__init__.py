"""The classifier as a service: from the command line, or from Python with ``run`` and ``running``."""

from typing import TYPE_CHECKING

from ramen.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from ramen.serve.from_python import RunningService as RunningService
    from ramen.serve.from_python import run as run
    from ramen.serve.from_python import running as running

_HOMES = dict.fromkeys(("RunningService", "run", "running"), "ramen.serve.from_python")

__all__ = ["RunningService", "run", "running"]  # imported when they are first used

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
