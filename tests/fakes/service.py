"""A service that looks at the bytes it gets alone, in this process or behind a real socket."""

import email.parser
import email.policy
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

CLASSES = ["cat", "house", "boat"]
NO_IMAGE = b"no image"  # what cannot be decoded


@dataclass
class Reply:
    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return b"" if self.body is None else json.dumps(self.body).encode()


def refusal(status: int, code: str, **more: object) -> Reply:
    headers = {"Retry-After": "1"} if "retry_after_ms" in more else {}
    return Reply(status, {"error": {"code": code, "message": f"it is {code}", **more}}, headers)


@dataclass
class FakeService:
    """Answers each image with the class whose number is the sum of its bytes, modulo three.

    Attributes:
        max_batch: The most images in a request.
        max_body: The most bytes.
        token: That callers must have.
        script: What to reply next, in place of answering: replies, or exceptions of httpx.
        learned: The bytes of all images, in the order in which they were answered.
        requests: All that came: method, path, query, headers.
        streams: Classes by name.
        before_answer: Called while a request is under way.
        most_at_a_time: How many requests with images were under way together.
    """

    max_batch: int = 4
    max_body: int = 2**20
    token: str | None = None
    script: list[Reply | Exception] = field(default_factory=list)
    learned: list[bytes] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    streams: dict[str, list[str]] = field(default_factory=dict)
    before_answer: Callable[[], object] = lambda: None
    most_at_a_time: int = 0

    def __post_init__(self) -> None:
        self._lock, self._at_a_time = threading.Lock(), 0

    # -- ways in ----------------------------------------------------------------------------------------

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self.respond)

    def respond(self, request: httpx.Request) -> httpx.Response:
        reply = self.handle(request)
        return httpx.Response(reply.status, headers=reply.headers, content=reply.content)

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Its URL, as long as the block lasts."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                reply = service.handle(
                    httpx.Request(
                        self.command, f"http://fake{self.path}", headers=dict(self.headers), content=body
                    )
                )
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": len(reply.content)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(reply.content)

            do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    # -- answers ----------------------------------------------------------------------------------------

    def handle(self, request: httpx.Request) -> Reply:
        request.read()
        with self._lock:
            self.requests.append(request)
            next_in_script = self.script.pop(0) if self.script else None
        if isinstance(next_in_script, Exception):
            raise next_in_script
        if next_in_script is not None:
            return next_in_script
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return refusal(401, "invalid_token")
        found = re.fullmatch("/v1/streams/([^/]+)(/.*)?", request.url.path)
        if found is None:
            return self._about(request)
        return self._in_stream(request, found[1], found[2] or "")

    def _about(self, request: httpx.Request) -> Reply:
        path, query = request.url.path, request.url.params
        if path == "/readyz":
            return Reply(body={"status": "ready"})
        if path == "/v1/model":
            names = ("name", "method", "device", "dtype")
            values = dict(zip(names, ("tiny", "ramen", "cpu", "float32"), strict=True))
            sizes = {"image_size": [32, 32], "max_batch": self.max_batch, "can_set_classes": True}
            return Reply(body={**values, **sizes, "classes": CLASSES, "of_a_newer_version": 1})
        if path == "/v1/streams":
            names = sorted(n for n in self.streams if n > query["after"] and n.startswith(query["prefix"]))
            page, limit = names[: int(query["limit"])], int(query["limit"])
            following = page[-1] if len(names) > limit else None
            return Reply(body={"streams": [self.info(name) for name in page], "next": following})
        return refusal(404, "not_found")

    def _in_stream(self, request: httpx.Request, stream: str, action: str) -> Reply:
        if action == "/classify":
            return self._classify(request, stream)
        if request.method == "PUT":
            classes = json.loads(request.content or b"{}").get("classes")
            there = self.streams.get(stream)
            if not action and there is not None and classes not in (None, there):
                return refusal(409, "stream_exists")
            self.streams[stream] = classes or there or CLASSES
            return Reply(201 if there is None else 200, self.info(stream))
        if stream not in self.streams:
            return refusal(404, "unknown_stream")
        if request.method == "DELETE":
            del self.streams[stream]
            return Reply(204)
        if action == "/feedback":
            labels = json.loads(request.content)["labels"]
            right = sum(one["label"] == CLASSES[int(one["id"].split("-")[1])] for one in labels)
            counts = {"labels": len(labels), "correct": right, "zero_shot_correct": 0, "unknown": 0}
            return Reply(body={**counts, "accuracy": right / len(labels), "zero_shot_accuracy": 0.0})
        return Reply(body=self.info(stream))

    def info(self, name: str) -> dict[str, object]:
        counts = dict.fromkeys(("images", "changed", "fallbacks", "errors", "memory_bytes"), 0)
        feedback = {"labels": 0, "correct": 0, "zero_shot_correct": 0, "unknown": 0, "accuracy": None}
        nothing = dict.fromkeys(("entries", "capacity", "last_used", "recovered", "accuracy"))
        text = {"name": name, "classes": self.streams[name], "method": "ramen"}
        return {**counts, **nothing, **text, "resident": True, "created": 1.0, "feedback": feedback}

    def _classify(self, request: httpx.Request, stream: str) -> Reply:
        if len(request.content) > self.max_body:
            return refusal(413, "too_large")
        images = sent_images(request)
        if len(images) > self.max_batch:
            return refusal(422, "too_many_images")
        if len(images) == 1 and images[0][1] == NO_IMAGE:
            return refusal(422, "undecodable")
        with self._lock:
            self._at_a_time += 1
            self.most_at_a_time = max(self.most_at_a_time, self._at_a_time)
        self.before_answer()
        with self._lock:
            self._at_a_time -= 1
            self.streams.setdefault(stream, CLASSES)
            self.learned += [data for _, data in images if data != NO_IMAGE]
            answers = [answer(key, data, len(self.learned)) for key, data in images]
        return Reply(body={"stream": stream, "answers": answers})


def sent_images(request: httpx.Request) -> list[tuple[str, bytes]]:
    """Keys and bytes; of pixels, those of each image."""
    kind = request.headers["content-type"]
    if kind == "application/x-ramen-uint8":
        n, h, w, c = map(int, request.headers["x-shape"].split(","))
        size = h * w * c
        assert len(request.content) == n * size
        return [(f"image {i}", request.content[i * size : (i + 1) * size]) for i in range(n)]
    head = f"Content-Type: {kind}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.content)
    parts = list(message.iter_parts())
    assert {part.get_param("name", header="content-disposition") for part in parts} == {"files"}
    return [(part.get_filename(), part.get_payload(decode=True)) for part in parts]


def label_number(data: bytes) -> int:
    return sum(data) % 3


def answer(key: str, data: bytes, version: int) -> dict[str, object]:
    numbers = dict.fromkeys(("probability", "zero_shot_probability", "entropy", "zero_shot_entropy"), 0.5)
    texts = {"id": f"a-{label_number(data)}", "key": key, "label": CLASSES[label_number(data)], "error": None}
    others = {"zero_shot_label": "cat", "probabilities": None, "adapted": True, "support": 3, "top": []}
    numbers |= {"state_version": version, "queued_ms": 1.5, "computed_ms": 2.5}
    values = {**numbers, **texts, **others, "changed": texts["label"] != "cat"}
    if data == NO_IMAGE:
        nothing = dict.fromkeys(("label", "probability", "zero_shot_label", "zero_shot_probability"))
        error = f"{key} cannot be read as an image: it is none"
        return {**values, **nothing, "id": "", "error": error, "adapted": False, "changed": False}
    return values | {"top": [{"label": values["label"], "probability": 0.5}]}
