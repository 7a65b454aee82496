"""What an operator decides, by name: of the engine, or of the HTTP front, whichever has it."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ramen.images.decoding import DecodingSettings
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.http.settings import HttpSettings
from ramen.utils.checks import nearest

_ENGINE = {field.name for field in fields(EngineSettings)} - {"decoding"}
_HTTP = {field.name for field in fields(HttpSettings)}
_DECODING = {"max_pixels"}


def settings_of(given: Mapping[str, Any]) -> tuple[EngineSettings, HttpSettings]:
    """Settings by the names of their fields; ValueError for one that does not exist.

    Args:
        given: Those that differ from their defaults: fields of ``EngineSettings`` and ``HttpSettings``, and
            ``max_pixels``.
    """
    known = _ENGINE | _HTTP | _DECODING
    for name in given:
        if name not in known:
            raise ValueError(f"{name} is no setting of a service{nearest(name, known)}")
    http = {name: value for name, value in given.items() if name in _HTTP}
    largest = http.get("max_body_bytes", HttpSettings.max_body_bytes)
    engine = EngineSettings(
        **{name: value for name, value in given.items() if name in _ENGINE},
        decoding=DecodingSettings(
            max_bytes=largest, **{name: value for name, value in given.items() if name in _DECODING}
        ),
    )
    # Besides what waits in the queue, some bodies are being read, and some are text that is decoded.
    together = 3 * engine.max_queue_bytes + 4 * largest
    return engine, HttpSettings(**{"max_bodies_bytes": together, **http})
