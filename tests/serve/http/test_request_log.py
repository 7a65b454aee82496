"""Lines of the log: what they have, and what they must not have."""

import io
import json
import logging
import sys

import pytest

from ramen.serve.http.app import create_app, log_to_stderr
from ramen.serve.http.auth import create_token
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import FakeBackend
from tests.helpers.app_client import AppClient

PATH = "/v1/streams/camera-1/classify?timeout_ms=9999"
PNG = {"Content-Type": "image/png"}


@pytest.fixture
def lines(monkeypatch):
    """A log in the given form, and what it has."""
    names = ("ramen", "uvicorn", "uvicorn.access")
    before = {
        name: (logger.handlers[:], logger.level, logger.propagate, logger.disabled)
        for name in names
        for logger in [logging.getLogger(name)]
    }
    written = io.StringIO()

    def start(form: str) -> io.StringIO:
        monkeypatch.setattr(sys, "stderr", written)
        log_to_stderr(form)
        return written

    yield start
    for name, (handlers, level, propagate, disabled) in before.items():
        logger = logging.getLogger(name)
        logger.handlers[:], logger.level, logger.propagate, logger.disabled = (
            handlers,
            level,
            propagate,
            disabled,
        )


def test_a_request_in_json(lines, tmp_path, backend: FakeBackend) -> None:
    written = lines("json")
    token = create_token(tmp_path / "tokens.json", "gateway", ["classify"])
    app = create_app(backend, HttpSettings(tokens=tmp_path / "tokens.json"))
    client = AppClient(app, {"Authorization": f"Bearer {token}", "X-Request-ID": "my-request.1"})
    response = client.post(PATH, files=[("files", ("a.png", b"content of an image"))] * 2)
    assert response.headers["X-Request-ID"] == "my-request.1"
    (line,) = map(json.loads, written.getvalue().splitlines())
    assert line.pop("ms") >= 0
    assert line.pop("time").startswith("20")
    assert line.pop("bytes") > 40
    assert line == {
        "level": "info",
        "logger": "ramen.serve.request",
        "request": "my-request.1",
        "method": "POST",
        "route": "/v1/streams/{stream}/classify",
        "status": 200,
        "stream": "camera-1",
        "images": 2,
        "token": "gateway",
    }
    for secret in (token, "content of", "9999", "a.png"):
        assert secret not in written.getvalue()


@pytest.mark.parametrize("given", ["a b", "x" * 129, "a\r\nb", "ä"], ids=["space", "long", "lines", "letter"])
def test_ids_that_are_not_taken_over(client: AppClient, given: str) -> None:
    response = client.get("/healthz", headers={b"X-Request-ID": given.encode("latin-1")})
    assert len(response.headers["X-Request-ID"]) == 16


def test_a_request_for_people(lines, client: AppClient) -> None:
    written = lines("text")
    client.post(PATH, content=b"abc", headers=PNG)
    (line,) = written.getvalue().splitlines()
    assert " info    POST /v1/streams/{stream}/classify 200 " in line
    assert "stream=camera-1 images=1 bytes=3" in line
    assert "9999" not in line


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_failure_has_its_traceback(lines, client: AppClient, backend: FakeBackend, form: str) -> None:
    written = lines(form)
    backend.failure = RuntimeError("something broke")
    client.post(PATH, content=b"abc", headers=PNG | {"X-Request-ID": "my-request"})
    assert "RuntimeError: something broke" in written.getvalue()
    assert "request my-request failed" in written.getvalue()
    if form == "json":
        first, second = map(json.loads, written.getvalue().splitlines())
        assert "Traceback" in first["traceback"]
        assert second["status"] == 500


def test_the_web_server_logs_likewise(lines) -> None:
    written = lines("json")
    logging.getLogger("uvicorn.error").info("Started %s", "now")
    logging.getLogger("uvicorn.access").info("GET /secret?query")
    assert json.loads(written.getvalue())["message"] == "Started now"


def test_no_such_form() -> None:
    with pytest.raises(ValueError, match="log_format must be one of 'json', 'text', got 'xml'"):
        log_to_stderr("xml")
