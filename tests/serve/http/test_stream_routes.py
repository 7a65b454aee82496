"""Streams over HTTP."""

import asyncio
import base64

import pytest

from ramen.client.operations import ChangedImage
from ramen.serve.http.auth import TokenRecord
from tests.fakes.backends import CLASSES, FakeBackend
from tests.helpers.app_client import AppClient


def test_life_of_a_stream(client: AppClient) -> None:
    assert client.get("/v1/streams/a").status_code == 404
    created = client.put("/v1/streams/a")
    assert (created.status_code, created.json()["classes"]) == (201, list(CLASSES))
    assert client.put("/v1/streams/a", json={}).status_code == 200
    assert client.put("/v1/streams/a", json={"classes": list(CLASSES)}).status_code == 200
    other = client.put("/v1/streams/a", json={"classes": ["x", "y"]})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "stream_exists")
    client.post("/v1/streams/a/classify", content=b"abc", headers={"Content-Type": "image/png"})
    assert client.get("/v1/streams/a").json()["images"] == 1
    assert client.post("/v1/streams/a/snapshot").json()["images"] == 1
    assert client.post("/v1/streams/a/reset").json()["images"] == 0
    changed = client.put("/v1/streams/a/classes", json={"classes": ["x", "y"]})
    assert (changed.status_code, changed.json()["classes"]) == (200, ["x", "y"])
    assert client.delete("/v1/streams/a").status_code == 204
    assert client.delete("/v1/streams/a").json()["error"]["code"] == "unknown_stream"


@pytest.mark.parametrize("action", ["reset", "snapshot", "feedback", "classes", "activity"])
def test_streams_that_do_not_exist(client: AppClient, action: str) -> None:
    method = {"classes": "PUT", "activity": "GET"}.get(action, "POST")
    body = {"classes": {"classes": ["x"]}, "feedback": {"labels": [{"id": "a", "label": "b"}]}}.get(action)
    response = client.request(method, f"/v1/streams/none/{action}", json=body)
    assert response.json()["error"]["code"] == "unknown_stream"


BAD_BODIES = {
    "none": (b'{"classes": []}', "application/json", 422),
    "twice": (b'{"classes": ["a", "a"]}', "application/json", 422),
    "number": (b'{"classes": [1]}', "application/json", 422),
    "no Unicode": (b'{"classes": ["\\ud800"]}', "application/json", 422),
    "NaN": (b'{"classes": NaN}', "application/json", 422),
    "half": (b"{", "application/json", 400),
    "no UTF-8": (b"\xff", "application/json", 400),
    "deep": (b"[" * 9000, "application/json", 400),
    "huge number": (b'{"classes": ' + b"1" * 5000 + b"}", "application/json", 400),
    "text": (b'{"classes": ["a"]}', "text/plain", 415),
    "no type": (b'{"classes": ["a"]}', None, 415),
    "too large": (b'{"classes": ["' + b"a" * 10_000 + b'"]}', "application/json", 413),
    "empty": (b"", "application/json", 422),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_bodies(client: AppClient, name: str) -> None:
    body, kind, status = BAD_BODIES[name]
    client.put("/v1/streams/a")
    headers = {} if kind is None else {"Content-Type": kind}
    response = client.put("/v1/streams/a/classes", content=body, headers=headers)
    assert response.status_code == status, response.text
    assert set(response.json()["error"]) == {"code", "message"}


def test_feedback(client: AppClient) -> None:
    client.put("/v1/streams/a")
    assert client.get("/v1/streams/a").json()["accuracy"] is None
    labels = [{"id": f"a-{n}", "label": "cat" if n else "dog"} for n in range(4)] + [
        {"id": "x", "label": "cat"}
    ]
    counts = client.post("/v1/streams/a/feedback", json={"labels": labels}).json()
    assert counts == {
        "labels": 4,
        "correct": 3,
        "zero_shot_correct": 0,
        "unknown": 1,
        "accuracy": 0.75,
        "zero_shot_accuracy": 0.0,
    }
    info = client.get("/v1/streams/a").json()
    assert (info["feedback"], info["accuracy"], info["zero_shot_accuracy"]) == (counts, 0.75, 0.0)


def test_activity(client: AppClient, backend: FakeBackend) -> None:
    client.put("/v1/streams/a")
    backend.changed_images = (ChangedImage("k", "cat", 0.5, "dog", float("nan"), 1.5, b"\xff\xd8"),)
    activity = client.get("/v1/streams/a/activity").json()
    assert activity["class_mix"] == [["cat", 2], ["dog", 1]]
    assert activity["zero_shot_entropy"] is None  # it was not a number
    (image,) = activity["changed_images"]
    assert base64.b64decode(image["thumbnail"]) == b"\xff\xd8"
    assert (image["probability"], image["zero_shot_probability"]) == (0.5, None)


def test_pages_of_a_list(client: AppClient) -> None:
    names = [f"a-{n}" for n in range(5)] + ["b"]
    for name in names:
        client.put(f"/v1/streams/{name}")
    found, after = [], ""
    while after is not None:
        page = client.get("/v1/streams", params={"after": after, "limit": 2}).json()
        assert len(page["streams"]) <= 2
        found += [stream["name"] for stream in page["streams"]]
        after = page["next"]
    assert found == names
    only = client.get("/v1/streams", params={"prefix": "b"}).json()
    assert ([stream["name"] for stream in only["streams"]], only["next"]) == (["b"], None)


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=" + "a" * 65])
def test_bad_pages(client: AppClient, query: str) -> None:
    assert client.get(f"/v1/streams?{query}").status_code == 422


def test_a_token_sees_its_own_streams(client: AppClient, backend: FakeBackend, monkeypatch) -> None:
    """Also if those of others fill whole pages of the backend."""
    monkeypatch.setattr("ramen.serve.http.routes._PAGE", 4)
    for n in range(10):
        for kind in ("camera", "door"):
            asyncio.run(backend.create_stream(f"{kind}-{n}"))
    record = TokenRecord("door", "0" * 64, ("classify",), ("door-*",), "2026-01-01")
    monkeypatch.setattr(client.app.state.service.access, "caller", lambda headers: record)
    first = client.get("/v1/streams", params={"limit": 6}).json()
    assert [stream["name"] for stream in first["streams"]] == [f"door-{n}" for n in range(6)]
    rest = client.get("/v1/streams", params={"after": first["next"]}).json()
    assert [stream["name"] for stream in rest["streams"]] == [f"door-{n}" for n in range(6, 10)]
    assert rest["next"] is None
