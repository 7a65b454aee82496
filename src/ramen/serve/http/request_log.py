"""Logs on standard error: one line per request or event, as JSON or for people.

Lines have no content of images, no tokens and no query strings.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from ramen.utils import checks

FORMATS = ("json", "text")
_LOGGERS = ("ramen", "uvicorn")


class JsonLines(logging.Formatter):
    """Each record is a line of JSON; a request's facts are fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        facts = getattr(record, "facts", None)
        line |= {"message": record.getMessage()} if facts is None else facts
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """Each record is a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback if there is one."""
        facts = getattr(record, "facts", None)
        message = record.getMessage() if facts is None else _in_words(facts)
        text = f"{_time(record)} {record.levelname.lower():7} {message}"
        return text + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _in_words(facts: dict[str, Any]) -> str:
    words = f"{facts['method']} {facts['route']} {facts['status']} {facts['ms']} ms"
    named = ("stream", "images", "bytes", "token", "request")
    return words + "".join(f" {name}={facts[name]}" for name in named if facts[name])


def log_to_stderr(form: str) -> None:
    """Send the log of the service, and of the web server, to standard error.

    Args:
        form: "json" or "text".
    """
    checks.choice("log_format", form, FORMATS)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
    logging.getLogger("uvicorn.access").disabled = True  # it has the query string; we have our own
