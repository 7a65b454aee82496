"""Where the time of a request goes besides the model: CPU time of decoding and of the HTTP front.

Most of it is Python that only one thread at a time can run, so that on a GPU, for which a batch is short,
the sum over a batch limits the rate. CPU time, not wall-clock time: other processes do not matter.
"""

import asyncio
import time
from collections.abc import Coroutine, MutableMapping
from typing import Any

import numpy as np

from ramen.client.operations import (
    Classify,
    Operation,
    ServedModel,
    ServerError,
    ServerOverloadedError,
    StreamAnswer,
)
from ramen.client.result import Result
from ramen.images.file_checks import DecodingSettings
from ramen.predict.decoding import Decoder
from ramen.predict.sources import Source
from ramen.serve.http.app import create_app
from service_checks.options import CLASSES, CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import jpeg, mixed_images, multipart_request, raw_request

TITLE = "CPU time per image, besides the model"
_CHUNK = 2**16  # bytes that arrive at a time


def run(options: CheckOptions, repeats: int = 20) -> Findings:
    """Measure decoding, and the HTTP front with an engine that answers at once; the least of some repeats."""
    found = Findings("costs")
    pixels = mixed_images(options.max_batch, options.image_size)
    files = [jpeg(image) for image in pixels]
    decoder = Decoder(options.classifier.preprocess, DecodingSettings())
    kinds: dict[str, list[Any]] = {
        "pixels of the encoder's size": list(pixels),
        "JPEG files of 500 x 375": list(files),
    }
    for name, sources in kinds.items():
        spent = []
        for _ in range(repeats):
            start = time.process_time()
            for source in sources:
                decoder.decode(Source("image", source))
            spent.append(time.process_time() - start)
        _note(found, f"decoding: {name}", 1000 * min(spent), len(pixels))
    requests = {
        f"pixels, {size} per request": raw_request("s", pixels[:size])
        for size in sorted({1, min(8, options.max_batch), options.max_batch})
    }
    requests[f"JPEG files, {len(files)} per request"] = multipart_request("s", files)
    app = _App(options)
    for name, request in requests.items():
        _note(found, f"HTTP: {name}", asyncio.run(app.cpu_ms(request.data, repeats)), request.images)
    refusing, one = _App(options, is_full=True), multipart_request("s", files[:1])
    spent_ms = asyncio.run(refusing.cpu_ms(one.data, repeats))
    _note(found, "HTTP: a JPEG file that a full queue refuses", spent_ms, 1)
    return found


def _note(found: Findings, what: str, milliseconds: float, images: int) -> None:
    each = milliseconds / images
    found.note(what, f"{each:.3f} ms per image, {milliseconds:.1f} ms for {images}", each)


class _AnswersAtOnce:
    """As much of a backend as classifying needs; what it answers was made before."""

    def __init__(self, options: CheckOptions, is_full: bool) -> None:
        self._is_full = is_full
        size, most = options.image_size, options.max_batch
        self.model = ServedModel("none", "none", CLASSES, size, most, False, "cpu", "float32")
        top = tuple((label, 0.2) for label in CLASSES[:5])
        self._result = Result("image", CLASSES[0], 0.2, CLASSES[1], 0.2, top, True, 100, 100, 1.0, 1.0)
        self._probabilities = np.full(len(CLASSES), 1 / len(CLASSES), np.float32)

    async def refusal(self, stream: str, images: int, nbytes: int) -> ServerError | None:
        return ServerOverloadedError("too many images are waiting", 1.0) if self._is_full else None

    def count_refusal(self) -> None:
        return

    def memory_for(self, length: int) -> memoryview | None:
        return None

    async def call(self, operation: Operation[Any]) -> Any:
        if not isinstance(operation, Classify):
            return True  # it is ready
        answer = StreamAnswer("id", operation.stream, self._result, self._probabilities, 1.0, 1.0)
        return [answer] * len(operation.images)

    async def close(self) -> None:
        return


class _App:
    """The application, called as a web server calls it; if ``is_full``, it refuses everything."""

    def __init__(self, options: CheckOptions, *, is_full: bool = False) -> None:
        backend: Any = _AnswersAtOnce(options, is_full)
        self._app = create_app(backend)
        self._expected = 429 if is_full else 200

    async def cpu_ms(self, request: bytes, repeats: int) -> float:
        """The least of several, in milliseconds."""
        spent = []
        for _ in range(repeats):
            call = self._call(request)
            start = time.process_time()
            await call
            spent.append(time.process_time() - start)
        return 1000 * min(spent)

    def _call(self, request: bytes) -> Coroutine[Any, Any, None]:
        head, _, body = request.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        pairs = [line.partition(b": ") for line in lines]
        path = first.split(b" ")[1].decode()
        scope: MutableMapping[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower(), value) for name, _, value in pairs],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        parts = [body[start : start + _CHUNK] for start in range(0, len(body), _CHUNK)]
        numbers = iter(range(len(parts)))

        async def receive() -> MutableMapping[str, Any]:
            number = next(numbers, None)
            if number is None:
                await asyncio.Event().wait()  # the client stays
                raise AssertionError
            return {"type": "http.request", "body": parts[number], "more_body": number + 1 < len(parts)}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] != self._expected:
                raise RuntimeError(f"the application answered with {message['status']}")

        return self._app(scope, receive, send)
