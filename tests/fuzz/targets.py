"""What is read from strangers, as functions of bytes that must not fail, each with inputs to begin with."""

import asyncio
import json
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from image_corpus import good_files, hostile_files

import ramen
from ramen.images.decoding import UnreadableImageError, decode
from ramen.methods import Method
from ramen.serve.http.app import create_app
from ramen.serve.http.server import StoppableServer
from ramen.serve.settings import HttpSettings
from ramen.testing.models import small_classifier
from tests.fakes.backends import FakeBackend

LIMITS = HttpSettings(max_body_bytes=20_000, max_bodies_bytes=40_000)
CLASSIFY = "/v1/streams/camera-1/classify"
INFER = "/v2/models/Fake-B-16-none/infer"
_TENSOR = {"name": "bytes", "shape": [1], "datatype": "BYTES"}
_LARGEST = 20_000  # bytes of an image to begin with


@dataclass(frozen=True)
class Target:
    """One of them.

    Attributes:
        read: An exception is a defect.
        corpus: Makes the inputs to begin with.
    """

    read: Callable[[bytes], object]
    corpus: Callable[[], Sequence[bytes]]


# -- requests ---------------------------------------------------------------------------------------


@cache
def _app() -> Any:
    return create_app(FakeBackend(), LIMITS)


def answered(path: str, headers: dict[str, str], body: bytes) -> None:
    """A body gets an answer that is no failure of the server."""

    async def exchange() -> int:
        sent, statuses = [{"type": "http.request", "body": body}], []

        async def receive() -> dict[str, Any]:
            if sent:
                return sent.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        named = {"host": "127.0.0.1", "content-length": str(len(body)), **headers}
        raw = [(name.encode(), value.encode()) for name, value in named.items()]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path}
        scope |= {"raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": raw}
        scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
        await _app()(scope, receive, send)
        return statuses[0]

    assert asyncio.run(exchange()) in (200, 400, 413, 415, 422, 429)


def tensor(body: bytes) -> None:
    """The first four bytes say how much of the rest is JSON."""
    length = int.from_bytes(body[:4], "little")
    headers = {"inference-header-content-length": str(length), "content-type": "application/octet-stream"}
    answered(INFER, headers, body[4:])


def _binary_tensor(*files: bytes) -> bytes:
    data = b"".join(struct.pack("<I", len(file)) + file for file in files)
    described = _TENSOR | {"shape": [len(files)], "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [described]}).encode()
    return struct.pack("<I", len(head)) + head + data


class _Transport(asyncio.Transport):
    """Takes what a connection writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 80)})
        self.closed = False

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


@cache
def _server() -> StoppableServer:
    server = StoppableServer(_app())
    server.config.load()
    return server


def connection(data: bytes) -> None:
    """What a client sends on a connection, in two pieces, and then ends it."""
    failures: list[Any] = []

    async def talk() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        server = _server()
        made = server.config.http_protocol_class(  # as the web server does
            config=server.config, server_state=server.server_state, app_state={}
        )
        transport = _Transport()
        made.connection_made(transport)
        middle = len(data) // 2
        for piece in (data[:middle], data[middle:]):
            if piece and not transport.closed:
                made.data_received(piece)
            for _ in range(5):
                await asyncio.sleep(0)
        made.connection_lost(None)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(talk())
    assert not failures, failures


_HEADS = (
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/streams/a/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    b"Content-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/streams/a/classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n0\r\nX: y\r\n\r\n",
    b"GET /v1/streams?after=%41 HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
)

# -- files ------------------------------------------------------------------------------------------


def image(data: bytes) -> None:
    """A file is decoded, or refused with a reason."""
    try:
        decoded = decode(data)
    except UnreadableImageError:
        return
    assert decoded.mode == "RGB"


@cache
def _learned() -> tuple[Method, bytes]:
    """A method, and the file of its state."""
    method = ramen.create("ramen", small_classifier(), capacity=4)
    method.predict(torch.rand(4, 3, *method.classifier.image_size))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        return method, path.read_bytes()


def state(data: bytes) -> None:
    """The file of a state is loaded if it is the one that was saved, and refused otherwise."""
    method, saved = _learned()
    handle, name = tempfile.mkstemp()
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        try:
            method.load(name)
        except (ValueError, OSError):
            assert data != saved
    finally:
        os.unlink(name)


# -- all of them --------------------------------------------------------------------------------------


def _image_files() -> list[bytes]:
    return [file.data for file in (*good_files(), *hostile_files()) if 0 < len(file.data) < _LARGEST]


_SENT = json.dumps({"images": [{"key": "a", "data": "iVBORw0KGgo="}, {"data": ""}]}).encode()
_ASKED = json.dumps({"inputs": [_TENSOR | {"data": ["iVBORw0K"]}], "outputs": [{"name": "labels"}]}).encode()
_FORM = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nabc\r\n--x--\r\n'
_MULTIPART = {"content-type": "multipart/form-data; boundary=x"}
_JSON = {"content-type": "application/json"}
TARGETS = {
    "connection": Target(connection, lambda: _HEADS),
    "json": Target(partial(answered, CLASSIFY, _JSON), lambda: [_SENT]),
    "form": Target(partial(answered, CLASSIFY, _MULTIPART), lambda: [_FORM]),
    "infer": Target(partial(answered, INFER, _JSON), lambda: [_ASKED]),
    "tensor": Target(tensor, lambda: [_binary_tensor(b"abc", b""), _binary_tensor()]),
    "image": Target(image, _image_files),
    "state": Target(state, lambda: [_learned()[1]]),
}
