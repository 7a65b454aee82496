"""The Open Inference Protocol, with the client of Triton as the judge."""

import base64
import json
import struct

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from ramen.client.operations import ServerOverloadedError
from ramen.serve.http.app import create_app
from ramen.serve.http.oip import slug
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import CLASSES, MODEL, FakeBackend
from tests.helpers.app_client import AppClient
from tests.helpers.running_server import running

SLUG = "Fake-B-16-none"
INFER = f"/v2/models/{SLUG}/infer"


@pytest.fixture
def server(app):
    with running(app) as handle:
        client = triton.InferenceServerClient(handle.url.removeprefix("http://"))
        yield client
        client.close()


def expected(backend: FakeBackend, data: bytes) -> np.ndarray:
    """The probabilities that the fake makes of some bytes."""
    import zlib

    scores = np.random.default_rng(zlib.crc32(data)).random(len(CLASSES), np.float32)
    return scores / scores.sum()


@pytest.mark.parametrize("name", [MODEL.name, SLUG])
def test_metadata(server, name: str) -> None:
    assert server.is_server_live()
    assert server.is_server_ready()
    assert server.is_model_ready(name)
    assert server.is_model_ready(name, "1")
    assert not server.is_model_ready("other")
    assert not server.is_model_ready(name, "2")
    assert server.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    model = server.get_model_metadata(name)
    assert model["name"] == MODEL.name
    assert model["parameters"]["names"] == [MODEL.name, SLUG]
    assert {one["name"]: (one["datatype"], one["shape"]) for one in model["inputs"]} == {
        "images": ("UINT8", [-1, -1, -1, 3]),
        "bytes": ("BYTES", [-1]),
    }
    outputs = {one["name"]: one["datatype"] for one in model["outputs"]}
    assert (outputs["labels"], outputs["probabilities"], outputs["adapted"]) == ("BYTES", "FP32", "BOOL")
    assert outputs["support"] == "INT64"


def test_not_ready(server, backend: FakeBackend) -> None:
    backend.is_ready = False
    assert server.is_server_live()
    assert not server.is_server_ready()
    assert not server.is_model_ready(SLUG)


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("binary_out", [True, False], ids=["to binary", "to json"])
@pytest.mark.parametrize("name", [MODEL.name, SLUG])
def test_pixels(server, backend: FakeBackend, name: str, binary_in: bool, binary_out: bool) -> None:
    pixels = np.random.randint(0, 256, (3, 4, 5, 3), np.uint8)
    tensor = triton.InferInput("images", pixels.shape, "UINT8")
    tensor.set_data_from_numpy(pixels, binary_data=binary_in)
    wanted = ["labels", "probabilities", "adapted", "support", "state_version"]
    outputs = [triton.InferRequestedOutput(one, binary_data=binary_out) for one in wanted]
    result = server.infer(
        name, [tensor], outputs=outputs, request_id="my id", parameters={"stream": "camera-7"}
    )
    (stream, images), *_ = backend.sent
    assert stream == "camera-7"
    np.testing.assert_array_equal(np.stack([image.data for image in images]), pixels)
    probabilities = result.as_numpy("probabilities")
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(
        probabilities, [expected(backend, image.tobytes()) for image in pixels], rtol=1e-6
    )
    labels = [one.decode() if isinstance(one, bytes) else one for one in result.as_numpy("labels")]
    assert labels == [CLASSES[row.argmax()] for row in probabilities]
    assert result.as_numpy("adapted").tolist() == [True] * 3
    assert result.as_numpy("support").tolist() == [5] * 3
    assert result.as_numpy("state_version").tolist() == [1, 2, 3]
    assert result.get_response()["id"] == "my id"
    assert [one["name"] for one in result.get_response()["outputs"]] == wanted


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_files(server, backend: FakeBackend, binary: bool) -> None:
    files = [b"one", b"\x00\xff\xfe two", b"bad", b"a"]
    sent = files if binary else [base64.b64encode(file) for file in files]
    tensor = triton.InferInput("bytes", [len(files)], "BYTES")
    tensor.set_data_from_numpy(np.array(sent, object), binary_data=binary)
    result = server.infer(SLUG, [tensor])
    assert [image.data for image in backend.sent[0][1]] == files
    assert backend.sent[0][0] == "default"
    errors = [str(one) for one in result.as_numpy("errors")]
    assert "bad" in errors[2]
    assert result.as_numpy("probabilities").shape == (4, len(CLASSES))
    assert result.as_numpy("probabilities")[2].tolist() == [0.0] * len(CLASSES)
    assert result.as_numpy("labels").shape == (4,)
    assert len(result.get_response()["outputs"]) == 11


def test_errors_reach_the_client(server, backend: FakeBackend) -> None:
    tensor = triton.InferInput("bytes", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"abc"], object))
    with pytest.raises(InferenceServerException, match="no model of this name") as unknown:
        server.infer("other", [tensor])
    assert unknown.value.status() == "404"
    backend.failure = ServerOverloadedError("too much is waiting", 1.0)
    with pytest.raises(InferenceServerException, match="too much is waiting") as overloaded:
        server.infer(SLUG, [tensor])
    assert overloaded.value.status() == "429"
    backend.failure, backend.delay = None, 60.0
    with pytest.raises(InferenceServerException, match="in time") as late:
        server.infer(SLUG, [tensor], timeout=20_000)  # microseconds
    assert late.value.status() == "504"
    backend.delay = 0.0
    with pytest.raises(InferenceServerException, match="no 'nothing'"):
        server.infer(SLUG, [tensor], outputs=[triton.InferRequestedOutput("nothing")])
    tensor.set_data_from_numpy(np.array([b"bad"], object))
    with pytest.raises(InferenceServerException, match="cannot be read as an image"):
        server.infer(SLUG, [tensor])


def request(**changes: object) -> dict[str, object]:
    return {"inputs": [{"name": "bytes", "shape": [1], "datatype": "BYTES", "data": ["YWJj"], **changes}]}


def test_plain_json(client: AppClient) -> None:
    response = client.post(INFER, json=request())
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in response.headers
    assert all(len(output["data"]) == output["shape"][0] * (output["shape"] + [1])[1]
               for output in response.json()["outputs"])  # fmt: skip
    assert (
        client.post(f"/v2/models/{SLUG}/versions/1/infer", json=request(data=[["YWJj"]])).status_code == 200
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"inputs": []},
        {"inputs": [1]},
        request(name="other"),
        request(datatype="UINT8"),
        request(shape=[2]),
        request(shape=[0]),
        request(shape=[-1]),
        request(shape=[10**30]),
        request(shape=[9], data=["YWJj"] * 9),
        request(shape=[1, 2]),
        request(data=None),
        request(data=[1]),
        request(data=["?"]),
        request(data=[["YWJj"], "YWJj"]),
        request(parameters={"binary_data_size": 3}),
        request(parameters={"binary_data_size": "3"}),
        request(parameters={"shared_memory_region": "a"}),
        request(name="images", datatype="UINT8", shape=[1, 1, 1, 3], data=[1, 2, 256]),
        request(name="images", datatype="UINT8", shape=[1, 1, 1, 3], data=[1, 2, 3.5]),
        request(name="images", datatype="UINT8", shape=[1, 1, 1, 3], data=[1, 2, True]),
        request(name="images", datatype="UINT8", shape=[1, 1, 1, 4], data=[1, 2, 3, 4]),
        request(name="images", datatype="UINT8", shape=[1, 2**39, 2**39, 3], data=[1]),
        request() | {"parameters": {"stream": 1}},
        request() | {"parameters": {"timeout": -1}},
        request() | {"parameters": {"timeout": "1"}},
        request() | {"parameters": {"timeout": 10**30}},
        request() | {"parameters": {"binary_data_output": 1}},
        request() | {"outputs": [{"name": "nothing"}]},
        request() | {"outputs": [{"name": "labels", "parameters": {"binary_data": 3}}]},
        {"inputs": request()["inputs"] * 2},
    ],
    ids=lambda body: json.dumps(body)[:70],
)
def test_what_is_refused(client: AppClient, backend: FakeBackend, body: dict) -> None:
    response = client.post(INFER, json=body)
    assert response.status_code == 422, response.text
    assert isinstance(response.json()["error"], str)
    assert backend.sent == []


@pytest.mark.parametrize("nested", [50, 100_000])
def test_nested_data(client: AppClient, nested: int) -> None:
    text = json.dumps(request(data=["X"])).replace('["X"]', "[" * nested + "]" * nested)
    assert client.post(INFER, content=text).status_code in (400, 413, 422)


@pytest.mark.parametrize(
    ("length", "rest", "status"),
    [
        (None, struct.pack("<I", 3) + b"abc", 400),
        ("-1", b"", 400),
        ("9999", b"", 400),
        ("1" * 30, b"", 400),
        ("json", struct.pack("<I", 3) + b"abc", 200),
        ("json", struct.pack("<I", 4) + b"abc", 422),
        ("json", struct.pack("<I", 2) + b"abc", 422),
        ("json", struct.pack("<I", 2**32 - 1) + b"abc", 422),
        ("json", b"\x00\x00\x00\x00\x00\x00\x00", 422),
    ],
    ids=["no length", "negative", "beyond", "huge", "right", "short", "long", "huge element", "odd"],
)
def test_binary_data(client: AppClient, length: str | None, rest: bytes, status: int) -> None:
    text = json.dumps(request(data=None, parameters={"binary_data_size": 7})).encode()
    headers = {"Content-Type": "application/octet-stream"}
    if length is not None:
        headers["Inference-Header-Content-Length"] = str(len(text)) if length == "json" else length
    response = client.post(INFER, content=text + rest, headers=headers)
    assert response.status_code == status, response.text


def test_large_requests(backend: FakeBackend) -> None:
    client = AppClient(create_app(backend, HttpSettings(max_json_bytes=1000)))
    response = client.post(INFER, json=request(data=["YWJj" * 300]))
    assert response.status_code == 413
    assert "binary tensor data" in response.json()["error"]
    pixels = np.random.randint(0, 256, (1, 400, 400, 3), np.uint8)  # large enough for a thread
    parameters = {"binary_data_size": pixels.nbytes}
    changes = {"name": "images", "datatype": "UINT8", "shape": pixels.shape, "data": None}
    text = json.dumps(request(**changes, parameters=parameters)).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    assert client.post(INFER, content=text + pixels.tobytes(), headers=headers).status_code == 200
    np.testing.assert_array_equal(backend.sent[0][1][0].data, pixels[0])


def test_content_types(client: AppClient) -> None:
    text = json.dumps(request())
    assert client.post(INFER, content=text, headers={"Content-Type": "text/plain"}).status_code == 415
    assert client.post(INFER, content=text, headers={"Content-Encoding": "gzip"}).status_code == 415
    assert client.post(INFER, content="{").status_code == 400


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ViT-B-16/openai", "ViT-B-16-openai"),
        ("tiny", "tiny"),
        ("hf-hub:a/b c", "hf-hub-a-b-c"),
        ("/", "model"),
    ],
)
def test_slugs(name: str, expected: str) -> None:
    assert slug(name) == expected
