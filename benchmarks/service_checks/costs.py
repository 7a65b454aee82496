"""Where the time of a request goes besides the model: CPU time of decoding and of the HTTP front.

Most of it is Python that only one thread at a time can run, so that on a GPU, for which a batch is short,
the sum over a batch limits the rate. CPU time, not wall-clock time: other processes do not matter.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
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
from ramen.images.decoding import DecodingSettings
from ramen.predict.decoding import Decoder
from ramen.predict.sources import Source
from ramen.serve.http.app import create_app
from service_checks.options import CLASSES, CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import jpeg, mixed_images, multipart_request, raw_request

TITLE = "CPU time per image, besides the model"
_CHUNK = 2**16  # bytes that arrive at a time


def run(options: CheckOptions, repeats: int = 20) -> Findings:
    """Measure decoding, and the HTTP front with an engine that answers at once.

    Args:
        options: Of the run.
        repeats: Of each.
    """
    found = Findings("costs")
    pixels = mixed_images(options.max_batch, options.image_size)
    files = [jpeg(image) for image in pixels]
    decoder = Decoder(options.classifier.preprocess, DecodingSettings())
    for name, sources in (("pixels of the encoder's size", list(pixels)), ("JPEG files of 500 x 375", files)):

        def decode(sources: Sequence[Any] = sources) -> None:
            for source in sources:
                decoder.decode(Source("image", source))

        _note(found, f"decoding: {name}", _cpu_ms(decode, repeats) / len(pixels), len(pixels))
    app = _App(options)
    for size in sorted({1, min(8, options.max_batch), options.max_batch}):
        spent = asyncio.run(app.cpu_ms(raw_request("s", pixels[:size]).data, repeats))
        _note(found, f"HTTP: pixels, {size} per request", spent / size, size)
    spent = asyncio.run(app.cpu_ms(multipart_request("s", files).data, repeats))
    _note(found, f"HTTP: JPEG files, {len(files)} per request", spent / len(files), len(files))
    refusing = _App(options, is_full=True)
    spent = asyncio.run(refusing.cpu_ms(multipart_request("s", files[:1]).data, repeats))
    _note(found, "HTTP: a JPEG file that a full queue refuses", spent, 1)
    return found


def _note(found: Findings, what: str, milliseconds: float, images: int) -> None:
    text = f"{milliseconds:.3f} ms per image, {milliseconds * images:.1f} ms for {images}"
    found.note(what, text, milliseconds)


def _cpu_ms(work: Callable[[], None], repeats: int) -> float:
    """The least of several, in milliseconds."""
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return 1000 * min(spent)


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
    """The application, called as a web server calls it.

    Args:
        options: Of the run.
        is_full: Whether it refuses everything.
    """

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
