"""Who may do what over HTTP."""

from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from ramen.serve.http.app import create_app
from ramen.serve.http.auth import check_access, create_token, revoke_token
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import FakeBackend
from tests.helpers.app_client import AppClient
from tests.helpers.running_server import running
from tests.serve.http.test_tokens import later

PNG = {"Content-Type": "image/png"}
OPEN = {"/healthz", "/readyz", "/", "/v2/health/live", "/v2/health/ready"}


class _Guarded:
    """An application that wants tokens, and a client for each."""

    def __init__(self, folder: Path, backend: FakeBackend) -> None:
        self.file = folder / "tokens.json"
        given = {
            "all": (["classify", "manage", "metrics"], ["*"]),
            "classify": (["classify"], ["camera-*"]),
            "manage": (["manage"], ["*"]),
            "metrics": (["metrics"], ["*"]),
        }
        self.tokens = {name: create_token(self.file, name, *rights) for name, rights in given.items()}
        self.app = create_app(backend, HttpSettings(tokens=self.file))

    def client(self, name: str) -> AppClient:
        return AppClient(self.app, {"Authorization": f"Bearer {self.tokens[name]}"})


@pytest.fixture
def guarded(tmp_path: Path, backend: FakeBackend) -> _Guarded:
    return _Guarded(tmp_path, backend)


def operations(app) -> list[tuple[str, str, bool]]:
    found = []
    for route in app.routes:
        if isinstance(route, APIRoute):
            path = route.path.format(stream="camera-1", model="Fake-B-16-none", version="1")
            found += [(method, path, route.path in OPEN) for method in route.methods or ()]
    return found


def test_without_a_token(guarded: _Guarded) -> None:
    """Every route but the open ones answers 401, before it reads anything."""
    listed = operations(guarded.app)
    assert len(listed) > 25
    for method, path, is_open in listed:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YTpi"}):
            response = AppClient(guarded.app, headers).request(method, path, content=b"x" * 100)
            if is_open:
                assert response.status_code != 401, path
            else:
                assert response.status_code == 401, path
                assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_the_open_inference_protocol_has_its_own_errors(guarded: _Guarded) -> None:
    assert isinstance(AppClient(guarded.app).get("/v2").json()["error"], str)


RIGHTS = [
    ("GET", "/v1/model", {"all", "classify", "manage", "metrics"}),
    ("GET", "/v2", {"all", "classify", "manage", "metrics"}),
    ("GET", "/v2/models/Fake-B-16-none", {"all", "classify", "manage", "metrics"}),
    ("GET", "/v1/streams", {"all", "classify", "manage"}),
    ("GET", "/v1/streams/camera-1", {"all", "classify", "manage"}),
    ("GET", "/v1/streams/camera-1/activity", {"all", "classify", "manage"}),
    ("GET", "/v1/statistics", {"all", "manage", "metrics"}),
    ("GET", "/metrics", {"all", "metrics"}),
    ("POST", "/v1/streams/camera-1/classify", {"all", "classify"}),
    ("POST", "/v1/streams/camera-1/feedback", {"all", "classify"}),
    ("POST", "/v2/models/Fake-B-16-none/infer", {"all", "classify"}),
    ("PUT", "/v1/streams/camera-1", {"all", "manage"}),
    ("POST", "/v1/streams/camera-1/reset", {"all", "manage"}),
    ("POST", "/v1/streams/camera-1/snapshot", {"all", "manage"}),
    ("PUT", "/v1/streams/camera-1/classes", {"all", "manage"}),
    ("DELETE", "/v1/streams/camera-1", {"all", "manage"}),
]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    RIGHTS,
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else value,
)
def test_scopes(guarded: _Guarded, method: str, path: str, allowed: set[str]) -> None:
    for name in guarded.tokens:
        response = guarded.client(name).request(method, path)
        assert (response.status_code != 403) == (name in allowed), (name, response.text)


def test_streams_of_a_token(guarded: _Guarded, backend: FakeBackend) -> None:
    client = guarded.client("classify")
    for stream, status in (("camera-1", 200), ("door", 403), ("camera", 403)):
        assert client.post(f"/v1/streams/{stream}/classify", content=b"x", headers=PNG).status_code == status
        body = {
            "parameters": {"stream": stream},
            "inputs": [{"name": "bytes", "shape": [1], "datatype": "BYTES", "data": ["eHl6"]}],
        }
        assert client.post("/v2/models/Fake-B-16-none/infer", json=body).status_code == status
    assert [stream for stream, _ in backend.sent] == ["camera-1", "camera-1"]
    guarded.client("manage").put("/v1/streams/door")
    assert client.get("/v1/streams/door").status_code == 403
    assert client.get("/v1/streams/door/activity").status_code == 403
    assert [stream["name"] for stream in client.get("/v1/streams").json()["streams"]] == ["camera-1"]


def test_the_default_stream_needs_a_right_too(guarded: _Guarded) -> None:
    body = {"inputs": [{"name": "bytes", "shape": [1], "datatype": "BYTES", "data": ["eHl6"]}]}
    assert guarded.client("classify").post("/v2/models/Fake-B-16-none/infer", json=body).status_code == 403


def test_revoked(guarded: _Guarded) -> None:
    assert guarded.client("metrics").get("/metrics").status_code == 200
    revoke_token(guarded.file, "metrics")
    later(guarded.file)
    response = guarded.client("metrics").get("/metrics")
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_token")


def test_a_file_of_tokens_that_is_gone(guarded: _Guarded) -> None:
    guarded.file.unlink()
    response = guarded.client("metrics").get("/metrics")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "tokens_unreadable")
    assert guarded.client("metrics").get("/healthz").status_code == 200


@pytest.mark.parametrize("how", ["revoked", "file gone"])
def test_events_end_with_their_token(guarded: _Guarded, backend: FakeBackend, how: str) -> None:
    app = create_app(backend, HttpSettings(tokens=guarded.file, events_interval=0.02))
    headers = {"Authorization": f"Bearer {guarded.tokens['metrics']}"}
    with (
        running(app) as server,
        httpx.stream("GET", f"{server.url}/v1/events", headers=headers, timeout=30) as response,
    ):
        lines = response.iter_lines()
        assert next(lines) == "event: statistics"
        if how == "revoked":
            revoke_token(guarded.file, "metrics")
        else:
            guarded.file.unlink()
        for _ in lines:  # until the server ends them
            pass


# -- without tokens ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8000", 200),
        ("127.9.9.9", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:8000", 403),
        ("192.168.0.1", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_hosts(client: AppClient, host: str, status: int) -> None:
    for path in ("/v1/model", "/healthz", "/nothing"):
        response = client.get(path, headers={"Host": host})
        assert response.status_code == (404 if status == 200 and path == "/nothing" else status)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.0.0.1:9000", False),
        ("http://evil.example", False),
        ("null", False),
    ],
)
def test_origins(client: AppClient, backend: FakeBackend, origin: str, allowed: bool) -> None:
    response = client.post("/v1/streams/a/classify", content=b"x", headers=PNG | {"Origin": origin})
    assert response.status_code == (200 if allowed else 403)
    assert len(backend.sent) == allowed
    assert client.get("/v1/model", headers={"Origin": origin}).status_code == 200
    assert "access-control-allow-origin" not in response.headers


def test_other_sites(client: AppClient) -> None:
    assert client.put("/v1/streams/a", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.put("/v1/streams/a", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 201


def test_tokens_are_for_any_host(guarded: _Guarded) -> None:
    client = guarded.client("all")
    headers = {"Host": "service.example", "Origin": "http://other.example"}
    assert client.put("/v1/streams/a", headers=headers).status_code == 201


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_everybody_on_this_machine(host: str) -> None:
    check_access(host, None, no_auth=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org", ""])
def test_nobody_from_elsewhere(host: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        check_access(host, None, no_auth=True)
    check_access(host, Path("tokens.json"), no_auth=False)


@pytest.mark.parametrize(("tokens", "no_auth"), [(None, False), (Path("tokens.json"), True)])
def test_somebody_must_decide(tokens: Path | None, no_auth: bool) -> None:
    with pytest.raises(ValueError, match="say who may use the service"):
        check_access("127.0.0.1", tokens, no_auth=no_auth)
