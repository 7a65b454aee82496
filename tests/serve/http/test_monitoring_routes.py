"""Health, figures, events, the dashboard, headers."""

import json
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import ramen
from ramen.serve.http.app import create_app
from ramen.serve.http.dashboard import dashboard_csp, dashboard_page
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import MODEL, FakeBackend
from tests.helpers.app_client import AppClient
from tests.helpers.running_server import running, wait_until

PNG = {"Content-Type": "image/png"}


def test_health(client: AppClient, backend: FakeBackend) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}
    backend.is_ready = False
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


def test_model_and_statistics(client: AppClient) -> None:
    assert client.get("/v1/model").json() == {
        "name": MODEL.name,
        "method": "ramen",
        "classes": list(MODEL.classes),
        "image_size": [32, 32],
        "max_batch": 8,
        "can_set_classes": True,
        "device": "cpu",
        "dtype": "float32",
    }
    statistics = client.get("/v1/statistics").json()
    assert (statistics["waiting_images"], statistics["mean_batch"]) == (7, None)
    assert statistics["latency_ms"] == {"p50": 1.0, "p90": 2.0, "p99": 3.0}


def samples(client: AppClient) -> dict[tuple[str, ...], float]:
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(response.text)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics(client: AppClient, backend: FakeBackend) -> None:
    client.post("/v1/streams/secret-name/classify", content=b"abc", headers=PNG)
    client.post("/v1/streams/secret-name/classify", content=b"bad", headers=PNG)
    client.get("/some/path/that/anybody/makes/up")
    client.request("BREW", "/healthz")
    found = samples(client)
    route = "/v1/streams/{stream}/classify"
    assert found["ramen_http_requests_total", "POST", route, "200"] == 1
    assert found["ramen_http_requests_total", "POST", route, "422"] == 1
    assert found["ramen_http_requests_total", "GET", "none", "404"] == 1
    assert found["ramen_http_requests_total", "other", "none", "405"] == 1
    assert found["ramen_http_request_seconds_count", route] == 2
    assert found["ramen_images_total",] == 2
    assert found["ramen_queue_images",] == 7
    assert found["ramen_resident_bytes",] == 1000
    assert found["ramen_latency_ms", "p99"] == 3.0
    (build,) = (set(labels) for name, *labels in found if name == "ramen_build_info")
    assert build == {ramen.__version__, MODEL.name, "ramen"}
    assert not any("secret-name" in label or "anybody" in label for name in found for label in name)


def test_two_applications_in_one_process(client: AppClient) -> None:
    other = AppClient(create_app(FakeBackend()))
    client.get("/healthz")
    assert ("ramen_http_requests_total", "GET", "/healthz", "200") not in samples(other)


def test_headers(client: AppClient) -> None:
    for path in ("/healthz", "/nothing", "/v1/streams/a", "/openapi.json"):
        headers = client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert len(headers["X-Request-ID"]) == 16
        assert "server" not in headers
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_methods_of_a_path(client: AppClient) -> None:
    response = client.request("PATCH", "/v1/streams/a")
    assert (response.status_code, response.headers["Allow"]) == (405, "DELETE, GET, PUT")
    assert response.json()["error"]["code"] == "method_not_allowed"


# -- the dashboard ----------------------------------------------------------------------------------


def test_dashboard(client: AppClient) -> None:
    response = client.get("/")
    assert (response.status_code, response.text) == (200, dashboard_page())
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["Content-Security-Policy"] == dashboard_csp()


# -- events -----------------------------------------------------------------------------------------


def read_events(lines: Iterator[str], count: int) -> list[dict]:
    data = (line.removeprefix("data: ") for line in lines if line.startswith("data: "))
    return [json.loads(next(data)) for _ in range(count)]


def test_events(backend: FakeBackend) -> None:
    app = create_app(backend, HttpSettings(max_listeners=2, events_interval=0.02))
    with running(app) as server, httpx.Client(base_url=server.url) as client:
        with client.stream("GET", "/v1/events") as first, client.stream("GET", "/v1/events") as second:
            assert first.headers["content-type"].startswith("text/event-stream")
            lines, others = (
                first.iter_lines(),
                second.iter_lines(),
            )  # once they are gone, a response is closed
            events = read_events(lines, 3)
            assert [event["waiting_images"] for event in events] == [7, 7, 7]
            assert events[0].keys() == client.get("/v1/statistics").json().keys()
            assert len(read_events(others, 2)) == 2
            third = client.get("/v1/events", timeout=30)
            assert (third.status_code, third.json()["error"]["code"]) == (429, "too_many_listeners")
            assert "Retry-After" in third.headers
        wait_until(lambda: "ramen_event_listeners 0.0" in client.get("/metrics").text)


def test_events_end_when_the_server_stops(backend: FakeBackend) -> None:
    app = create_app(backend, HttpSettings(events_interval=60))
    with running(app) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        with client.stream("GET", "/v1/events") as response:
            lines = response.iter_lines()
            assert next(lines) == "event: statistics"
            server.server.stop()
            rest = list(lines)  # ends without an error
        assert len(rest) == 2
        server.stop()
    assert backend.closed == 1


def test_no_events_while_stopping(app, client: AppClient) -> None:
    app.state.service.stopping.set()
    assert client.get("/v1/events").status_code == 503
    assert client.get("/readyz").status_code == 503
    response = client.post("/v1/streams/a/classify", content=b"abc", headers=PNG)
    assert response.json()["error"]["code"] == "stopping"


@pytest.mark.parametrize("path", ["/v1/events", "/v1/statistics", "/metrics"])
def test_statistics_that_fail(client: AppClient, backend: FakeBackend, monkeypatch, path: str) -> None:
    async def fail() -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(backend, "statistics", fail)
    if path == "/v1/events":
        with running(client.app) as server, pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{server.url}{path}")
    else:
        response = client.get(path)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal")
        assert "secret" not in response.text
