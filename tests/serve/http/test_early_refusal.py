"""A full queue refuses requests by their head: with the usual response, and after the checks of the head."""

import logging

import pytest

from ramen.client.operations import ServerOverloadedError
from ramen.serve.http.app import create_app
from ramen.serve.http.auth import create_token
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import FakeBackend
from tests.helpers.app_client import AppClient

PATH = "/v1/streams/camera-1/classify"
JPEG = {"Content-Type": "image/jpeg"}
RAW = {"Content-Type": "application/x-ramen-uint8", "X-Shape": "3,2,2,3"}


@pytest.fixture
def backend() -> FakeBackend:
    made = FakeBackend()
    made.early_failure = ServerOverloadedError("too many images are waiting (9, 90 bytes)", 1.2)
    return made


def test_what_the_refusal_says(backend: FakeBackend, caplog: pytest.LogCaptureFixture) -> None:
    """The same as if the queue had refused it after the body was read, but for the request's id."""
    client = AppClient(create_app(backend))
    with caplog.at_level(logging.INFO, "ramen.serve.request"):
        early = client.post(PATH, content=b"12345", headers=JPEG)
        assert backend.sent == []
        backend.failure, backend.early_failure = backend.early_failure, None
        late = client.post(PATH, content=b"12345", headers=JPEG)
        assert len(backend.sent) == 1
        metrics = client.get("/metrics").text
    assert early.status_code == late.status_code == 429
    assert early.json() == late.json()
    assert early.json()["error"]["retry_after_ms"] == 1200
    differing = {"x-request-id", "date"}
    headers = [{k: v for k, v in one.headers.items() if k not in differing} for one in (early, late)]
    assert headers[0] == headers[1]
    assert headers[0]["retry-after"] == "2"
    assert early.headers["x-request-id"] != late.headers["x-request-id"]
    assert backend.refused_early == 1
    counted = (
        'ramen_http_requests_total{method="POST",route="/v1/streams/{stream}/classify",status="429"} 2.0'
    )
    assert counted in metrics
    facts = [record.facts for record in caplog.records if hasattr(record, "facts")]
    assert [fact["status"] for fact in facts[:2]] == [429, 429]
    assert facts[0]["stream"] == facts[1]["stream"] == "camera-1"
    assert (facts[0]["images"], facts[0]["bytes"]) == (0, 0)  # nothing was read


@pytest.mark.parametrize(
    ("headers", "body", "asked"),
    [
        (JPEG, b"12345", ("camera-1", 1, 5)),
        (RAW, b"x" * 36, ("camera-1", 3, 36)),
        (RAW | {"X-Shape": "1000,2,2,3"}, b"x", ("camera-1", 8, 1)),  # not more than a request may have
        (RAW | {"X-Shape": "-3"}, b"x", ("camera-1", 1, 1)),
        ({"Content-Type": "application/json"}, b"{}", ("camera-1", 1, 0)),  # unknown before it is read
    ],
)
def test_what_the_queue_is_asked(
    backend: FakeBackend, headers: dict[str, str], body: bytes, asked: tuple[str, int, int]
) -> None:
    client = AppClient(create_app(backend))
    assert client.post(PATH, content=body, headers=headers).status_code == 429
    assert backend.asked_early == [asked]


def test_what_is_refused_in_any_case_says_so(backend: FakeBackend, tmp_path) -> None:
    """Who may not send images, or sends what is not accepted, does not hear of the queue."""
    tokens = tmp_path / "tokens.json"
    good = {"Authorization": f"Bearer {create_token(tokens, 'a', ['classify'], ['camera-*'])}"}
    other = {"Authorization": f"Bearer {create_token(tokens, 'b', ['metrics'], ['*'])}"}
    settings = HttpSettings(tokens, max_body_bytes=10)
    client = AppClient(create_app(backend, settings))

    def status(headers: dict[str, str], path: str = PATH, body: bytes = b"x") -> int:
        return client.post(path, content=body, headers=headers).status_code

    assert status(JPEG) == 401
    assert status(JPEG | {"Authorization": "Bearer wrong"}) == 401
    assert status(JPEG | other) == 403
    assert status(JPEG | good, "/v1/streams/door/classify") == 403
    assert status(JPEG | good, body=b"x" * 11) == 413
    assert status(JPEG | good | {"Content-Encoding": "gzip"}) == 415
    assert status(good | {"Content-Type": "text/plain"}) == 415
    assert backend.refused_early == 0
    assert status(JPEG | good) == 429
    assert backend.refused_early == 1


def test_other_requests_are_not_asked_about(backend: FakeBackend) -> None:
    client = AppClient(create_app(backend))
    assert client.get("/healthz").status_code == 200
    assert client.get(PATH).status_code == 405
    assert client.post("/v1/streams/%20/classify", content=b"x", headers=JPEG).status_code == 422
    assert backend.asked_early == []
