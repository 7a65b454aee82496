"""Images over HTTP: the forms of a body, limits, overload, deadlines, clients that go away."""

import asyncio
import base64
import json
import time
import tracemalloc
from collections.abc import Sequence

import httpx
import numpy as np
import pytest

from ramen.client.operations import (
    InvalidRequestError,
    NoSuchStreamError,
    ServerOverloadedError,
    StoppingError,
)
from ramen.serve.http.app import create_app
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import CLASSES, FakeBackend
from tests.helpers.app_client import AppClient, async_client
from tests.helpers.running_server import running, wait_until

PATH = "/v1/streams/camera-1/classify"
PNG = {"Content-Type": "image/png"}
ANSWER = {
    "id",
    "key",
    "label",
    "probability",
    "zero_shot_label",
    "zero_shot_probability",
    "top",
    "probabilities",
    "adapted",
    "changed",
    "support",
    "state_version",
    "entropy",
    "zero_shot_entropy",
    "error",
    "queued_ms",
    "computed_ms",
}


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


# -- forms of a body --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "application/octet-stream", "IMAGE/TIFF; q=1"])
def test_a_file_in_the_body(client: AppClient, backend: FakeBackend, kind: str) -> None:
    response = client.post(PATH, content=b"one", headers={"Content-Type": kind})
    assert response.status_code == 200
    assert response.json()["stream"] == "camera-1"
    (answer,) = response.json()["answers"]
    assert set(answer) == ANSWER
    assert (answer["key"], answer["id"], answer["error"]) == ("image 0", "camera-1-1", None)
    assert answer["label"] == answer["top"][0]["label"]
    assert answer["probabilities"] is None
    ((stream, (image,)),) = backend.sent
    assert (stream, image.data) == ("camera-1", b"one")


def test_several_files(client: AppClient, backend: FakeBackend) -> None:
    files = [
        ("files", ("a.jpg", b"one")),
        ("files", ("b ä.jpg", b"\r\n--two\x00")),
        ("files", ("", b"three")),
    ]
    response = client.post(PATH, files=[*files, ("note", (None, "not an image"))])
    assert response.status_code == 200, response.text
    assert [image.data for image in backend.sent[0][1]] == [b"one", b"\r\n--two\x00", b"three"]
    assert [answer["key"] for answer in response.json()["answers"]] == ["a.jpg", "b ä.jpg", "image 2"]


def test_base64(client: AppClient, backend: FakeBackend) -> None:
    images = [{"key": "a", "data": base64.b64encode(b"one").decode()}, {"data": "dHdv"}]
    response = client.post(PATH, json={"images": images})
    assert [answer["key"] for answer in response.json()["answers"]] == ["a", "image 1"]
    assert [image.data for image in backend.sent[0][1]] == [b"one", b"two"]


def test_pixels(client: AppClient, backend: FakeBackend) -> None:
    pixels = np.random.randint(0, 256, (3, 4, 5, 3), np.uint8)
    headers = {"Content-Type": "application/x-ramen-uint8", "X-Shape": "3, 4,5,3"}
    response = client.post(PATH, content=pixels.tobytes(), headers=headers)
    assert len(response.json()["answers"]) == 3
    np.testing.assert_array_equal(np.stack([image.data for image in backend.sent[0][1]]), pixels)


def test_probabilities_of_all_classes(client: AppClient) -> None:
    client.put("/v1/streams/camera-1", json={"classes": ["x", "y"]})
    response = client.post(PATH, content=b"one", headers=PNG, params={"probabilities": "all"})
    (answer,) = response.json()["answers"]
    assert list(answer["probabilities"]) == ["x", "y"]
    assert answer["probabilities"][answer["label"]] == answer["probability"]


# -- what is refused --------------------------------------------------------------------------------

JSON = {"Content-Type": "application/json"}
PIXELS = "application/x-ramen-uint8"
FORM = "multipart/form-data; boundary=xx"
PART = b'--xx\r\nContent-Disposition: form-data; name="files"\r\n\r\nabc\r\n'
REFUSED = {
    "no type": (b"abc", {}, 415, "content_type"),
    "text": (b"abc", {"Content-Type": "text/plain"}, 415, "content_type"),
    "svg": (b"<svg/>", {"Content-Type": "image/svg+xml"}, 415, "content_type"),
    "compressed": (b"abc", PNG | {"Content-Encoding": "gzip"}, 415, "content_encoding"),
    "empty": (b"", PNG, 422, "no_images"),
    "bad image": (b"bad image", PNG, 422, "undecodable"),
    "no JSON": (b"{", JSON, 400, "bad_request"),
    "no Unicode": (b'{"images": [{"data": "\\ud800"}]}', JSON, 400, "bad_request"),
    "deep JSON": (b"[" * 9000, JSON, 400, "bad_request"),
    "other JSON": (b"[]", JSON, 422, "invalid"),
    "no images": (b'{"images": []}', JSON, 422, "invalid"),
    "no base64": (b'{"images": [{"data": "?"}]}', JSON, 422, "invalid"),
    "too many": (
        b'{"images": [' + b",".join([b'{"data": "YWJj"}'] * 9) + b"]}",
        JSON,
        422,
        "too_many_images",
    ),
    "long key": (json.dumps({"images": [{"key": "k" * 257, "data": ""}]}).encode(), JSON, 422, "invalid"),
    "no boundary": (b"abc", {"Content-Type": "multipart/form-data"}, 400, "bad_request"),
    "no multipart": (b"abc", {"Content-Type": FORM}, 400, "bad_request"),
    "multipart that ends": (PART, {"Content-Type": FORM}, 400, "bad_request"),
    "nine parts": (PART * 9 + b"--xx--\r\n", {"Content-Type": FORM}, 422, "too_many_images"),
    "other parts": (
        PART.replace(b'"files"', b'"file"') + b"--xx--\r\n",
        {"Content-Type": FORM},
        422,
        "no_images",
    ),
    "no shape": (bytes(12), {"Content-Type": PIXELS}, 422, "invalid"),
    "wrong shape": (bytes(12), {"Content-Type": PIXELS, "X-Shape": "1,2,2,4"}, 422, "invalid"),
    "huge shape": (bytes(12), {"Content-Type": PIXELS, "X-Shape": "1,999999999,999999999,3"}, 422, "invalid"),
    "too many pixels": (bytes(27), {"Content-Type": PIXELS, "X-Shape": "9,1,1,3"}, 422, "too_many_images"),
    "too large": (bytes(10_001), PNG, 413, "too_large"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(client: AppClient, name: str) -> None:
    body, headers, status, code = REFUSED[name]
    response = client.post(PATH, content=body, headers=headers)
    assert error_of(response) == (status, code), response.text
    assert client.app.state.service.bodies.taken == 0


def test_limits_are_named(client: AppClient) -> None:
    files = [("files", ("a", b"abc"))] * 9
    assert "at most 8 images" in client.post(PATH, files=files).json()["error"]["message"]
    too_large = client.post(PATH, content=bytes(10_001), headers=PNG)
    assert "at most 10000 bytes" in too_large.json()["error"]["message"]


def test_one_bad_image_among_several(client: AppClient) -> None:
    files = [("files", ("a", b"one")), ("files", ("b", b"bad")), ("files", ("c", b"three"))]
    response = client.post(PATH, files=files)
    assert response.status_code == 200
    errors = [answer["error"] for answer in response.json()["answers"]]
    assert errors == [None, "b cannot be read as an image: it is bad", None]
    assert response.json()["answers"][1]["label"] is None


def test_a_chunked_body_is_cut_off(app, backend: FakeBackend) -> None:
    sent = 0

    async def parts():
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield bytes(1000)

    async def send() -> httpx.Response:
        async with async_client(app) as client:
            return await client.post(PATH, content=parts(), headers=PNG)

    assert error_of(asyncio.run(send())) == (413, "too_large")
    assert sent < 20
    assert backend.sent == []


@pytest.mark.parametrize("stream", [".a", "a" * 65, "a%20b", "a%00", "%C3%A4", "a\u2028"])
def test_bad_names_of_streams(client: AppClient, stream: str) -> None:
    response = client.post(f"/v1/streams/{stream}/classify", content=b"abc", headers=PNG)
    assert error_of(response) == (422, "invalid")


@pytest.mark.parametrize(
    "query", ["timeout_ms=0", "timeout_ms=120001", "timeout_ms=nan", "probabilities=some"]
)
def test_bad_queries(client: AppClient, query: str) -> None:
    assert error_of(client.post(f"{PATH}?{query}", content=b"abc", headers=PNG)) == (422, "invalid")


# -- what a backend refuses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (InvalidRequestError("no"), 422, "invalid"),
        (NoSuchStreamError("no"), 404, "unknown_stream"),
        (StoppingError("no"), 503, "stopping"),
        (RuntimeError("secret"), 500, "internal"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_failures(client: AppClient, backend: FakeBackend, failure, status: int, code: str) -> None:
    backend.failure = failure
    response = client.post(PATH, content=b"abc", headers=PNG | {"X-Request-ID": "my-request"})
    assert error_of(response) == (status, code)
    assert "secret" not in response.text
    if status == 500:
        assert "my-request" in response.json()["error"]["message"]


@pytest.mark.parametrize(("seconds", "header", "ms"), [(0.0123, "1", 13), (2.5, "3", 2500), (0.0, "1", 1)])
def test_overload(client: AppClient, backend: FakeBackend, seconds: float, header: str, ms: int) -> None:
    backend.failure = ServerOverloadedError("too much", seconds)
    response = client.post(PATH, content=b"abc", headers=PNG)
    assert error_of(response) == (429, "overloaded")
    assert response.headers["Retry-After"] == header
    assert response.json()["error"]["retry_after_ms"] == ms


async def sent_with(app, *, waiting: Sequence[tuple[str, bytes]], path: str = PATH) -> httpx.Response:
    """The response to a body of 5,000 bytes, while requests with a stream and the start of a body wait.

    Each of these declares 9,000 bytes.
    """
    began = 0

    async def start(content: bytes):
        nonlocal began
        began += 1
        yield content
        await asyncio.sleep(0 if len(content) == 9000 else 60)

    async with async_client(app) as client:
        headers = PNG | {"Content-Length": "9000"}
        tasks = [
            asyncio.create_task(
                client.post(f"/v1/streams/{stream}/classify", content=start(content), headers=headers)
            )
            for stream, content in waiting
        ]
        wanted = sum(len(content) for _, content in waiting)
        while began < len(waiting) or app.state.service.bodies.taken < wanted:
            await asyncio.sleep(0)
        try:
            return await client.post(path, content=bytes(5000), headers=PNG, params={"timeout_ms": 50})
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def test_bodies_beyond_the_budget_are_refused(app, backend: FakeBackend) -> None:
    backend.delay = 60.0
    response = asyncio.run(sent_with(app, waiting=[("a", bytes(9000)), ("b", bytes(9000))]))
    assert error_of(response) == (429, "overloaded")
    assert response.headers["Retry-After"] == "1"
    assert app.state.service.bodies.taken == 0


def test_bodies_that_are_announced_take_no_budget(app, backend: FakeBackend) -> None:
    """Sixteen of them and a byte of each would block everybody else."""
    response = asyncio.run(sent_with(app, waiting=[("a", b"x")] * 16))
    assert response.status_code == 200
    assert app.state.service.bodies.taken == 0


def test_one_stream_leaves_room_for_others(backend: FakeBackend) -> None:
    """Its third body is refused where another stream's is not."""
    app = create_app(backend, HttpSettings(max_body_bytes=10_000, max_bodies_bytes=25_000))
    backend.delay = 60.0
    waiting = [("camera-1", bytes(9000))] * 2
    assert error_of(asyncio.run(sent_with(app, waiting=waiting))) == (429, "overloaded")
    other = asyncio.run(sent_with(app, waiting=waiting, path="/v1/streams/other/classify"))
    assert error_of(other) == (504, "deadline")


HEAD = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"images":[' + b"{}," * 2_000_000 + b"{}]}"),
        ("application/json", b'{"images":[' + b"[" * 3_000_000),
        ("application/json", b'{"images":[{"data":""}],"x":[' + b"1," * 3_000_000 + b"1]}"),
        ("multipart/form-data; boundary=b", b"--b\r\n" + b"a:b\r\n" * 1_000_000 + b"\r\nx\r\n--b--\r\n"),
        ("multipart/form-data; boundary=b", (HEAD + b"\r\n") * 100_000 + b"--b--\r\n"),
    ],
    ids=["many images", "deep", "many values", "headers of a part", "many parts"],
)
def test_bodies_that_would_take_many_times_their_bytes(backend: FakeBackend, kind: str, body: bytes) -> None:
    client = AppClient(create_app(backend, HttpSettings()))
    tracemalloc.start()
    try:
        response = client.post(PATH, content=body, headers={"Content-Type": kind})
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert response.status_code in (400, 422)
    assert len(response.content) < 1000
    assert most < 5 * len(body)  # the test's client and the server have some copies of it


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/streams/camera-1/classes", {"classes": [1] * 100_000}),
        ("PUT", "/v1/streams/camera-1", {"classes": [""] * 100_000}),
        ("POST", "/v1/streams/camera-1/feedback", {"labels": [{}] * 10_000}),
        ("POST", "/v2/models/Fake-B-16-none/infer", {"inputs": [{}] * 1_000_000}),
        ("POST", "/v2/models/Fake-B-16-none/infer", {"inputs": [], "outputs": [{}] * 1_000_000}),
    ],
    ids=["classes", "create", "feedback", "inputs", "outputs"],
)
def test_lists_with_many_mistakes(
    client: AppClient, backend: FakeBackend, method: str, path: str, body
) -> None:
    client = AppClient(create_app(backend, HttpSettings()))
    response = client.request(method, path, json=body)
    assert response.status_code == 422
    assert len(response.content) < 1000


def test_json_without_images_is_small(backend: FakeBackend) -> None:
    client = AppClient(create_app(backend, HttpSettings(max_json_bytes=1000)))
    response = client.put("/v1/streams/camera-1/classes", json={"classes": ["x" * 900, "y" * 900]})
    assert error_of(response) == (413, "too_large")


def test_not_ready(client: AppClient, backend: FakeBackend) -> None:
    backend.is_ready = False
    response = client.post(PATH, content=b"abc", headers=PNG)
    assert error_of(response) == (503, "not_ready")
    assert response.headers["Retry-After"] == "1"
    assert backend.sent == []


def test_deadline(client: AppClient, backend: FakeBackend) -> None:
    backend.delay = 60.0
    response = client.post(PATH, content=b"abc", headers=PNG, params={"timeout_ms": 20})
    assert error_of(response) == (504, "deadline")


def test_deadline_of_a_body_that_does_not_come(app, backend: FakeBackend) -> None:
    async def body():
        yield b"a"
        await asyncio.sleep(60)

    async def send() -> httpx.Response:
        async with async_client(app) as client:
            return await client.post(PATH, content=body(), headers=PNG, params={"timeout_ms": 20})

    assert error_of(asyncio.run(send())) == (504, "deadline")
    assert backend.sent == []


def test_default_timeout(backend: FakeBackend) -> None:
    backend.delay = 60.0
    app = create_app(backend, HttpSettings(default_timeout_ms=20))
    assert error_of(AppClient(app).post(PATH, content=b"abc", headers=PNG)) == (504, "deadline")


def test_a_client_that_goes_away(app, backend: FakeBackend) -> None:
    backend.delay = 60.0
    with running(app) as server, httpx.Client(base_url=server.url) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post(PATH, content=b"abc", headers=PNG, timeout=0.2)
        wait_until(lambda: backend.cancelled == 1)
        backend.delay = 0.0
        assert client.post(PATH, content=b"abc", headers=PNG).status_code == 200
    assert app.state.service.bodies.taken == 0


def test_real_chunked_bodies(app, backend: FakeBackend) -> None:
    def parts(count: int):
        for _ in range(count):
            yield bytes(1000)

    with running(app) as server, httpx.Client(base_url=server.url) as client:
        assert client.post(PATH, content=parts(9), headers=PNG).status_code == 200
        assert error_of(client.post(PATH, content=parts(2000), headers=PNG)) == (413, "too_large")
        assert error_of(client.post(PATH, content=bytes(20_000_000), headers=PNG)) == (413, "too_large")
        assert client.get("/healthz").status_code == 200
    assert len(backend.sent[0][1][0].data) == 9000
    assert len(backend.sent) == 1


def test_requests_at_the_same_time(app, backend: FakeBackend) -> None:
    """Each gets its own answers."""
    backend.delay = 0.01

    async def send() -> list[httpx.Response]:
        async with async_client(app) as client:
            calls = (
                client.post(f"/v1/streams/s{n % 7}/classify", files=[("files", (f"k{n}", b"x%d" % n))])
                for n in range(40)
            )
            return await asyncio.gather(*calls)

    started = time.monotonic()
    for number, response in enumerate(asyncio.run(send())):
        assert response.json()["stream"] == f"s{number % 7}"
        (answer,) = response.json()["answers"]
        assert answer["key"] == f"k{number}"
        assert answer["label"] in CLASSES
    assert time.monotonic() - started < 60
