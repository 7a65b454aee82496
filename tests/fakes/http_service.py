"""A service that speaks the HTTP API without a model: what it holds and how it fails is up to the test."""

import base64
import io
import json
import math
import re
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from PIL import Image

from ramen.serve.http.dashboard import dashboard_csp, dashboard_page

CLASSES = ("cat", "dog", "fire truck", "bicycle", "pelican", "tram")
MODEL = {
    "name": "ViT-B-16/openai",
    "method": "ramen",
    "classes": CLASSES,
    "image_size": [224, 224],
    "max_batch": 32,
    "can_set_classes": True,
    "device": "cuda:0",
    "dtype": "float16",
}
_MIB = 2**20


def statistics(second: int = 0, **others: Any) -> dict[str, Any]:
    """What a busy service reports in a second of its life."""
    wave = math.sin(second / 9) + 0.4 * math.sin(second / 2.3)
    latency = 14 + 3 * wave
    values = {
        "images": 1_204_331 + 240 * second,
        "requests": 310_220 + 60 * second,
        "batches": 40_112 + 10 * second,
        "changed": 90_112 + int(19.5 * second + 8 * wave),
        "fallbacks": 0,
        "undecodable": 12,
        "overloaded": 0,
        "expired": 0,
        "cancelled": 31,
        "waiting_images": max(0, int(24 + 20 * wave)),
        "waiting_bytes": max(0, int((3 + 2.4 * wave) * _MIB)),
        "queue_images": 1024,
        "queue_bytes": 256 * _MIB,
        "images_per_second": 240 + 30 * wave,
        "latency_ms": {"p50": latency, "p90": 1.5 * latency, "p99": 2.4 * latency + 4 * wave},
        "compute_ms": {"p50": 0.6 * latency, "p90": 0.7 * latency, "p99": 0.9 * latency},
        "mean_batch": 18 + 5 * wave,
        "streams": 40,
        "resident_streams": 31,
        "resident_bytes": 612 * _MIB + second * 40_000,
        "streams_budget": 1024 * _MIB,
        "parked": 9,
        "store_failures": 0,
    }
    return values | others


def stream_info(name: str, **others: Any) -> dict[str, Any]:
    """A stream that has answered some images."""
    values = {
        "name": name,
        "classes": CLASSES,
        "method": "ramen",
        "images": 12_345,
        "changed": 1_012,
        "fallbacks": 0,
        "errors": 0,
        "entries": 512,
        "capacity": 750,
        "memory_bytes": 19 * _MIB,
        "resident": True,
        "created": time.time() - 400_000,
        "last_used": time.time() - 2,
        "feedback": {"labels": 0, "correct": 0, "zero_shot_correct": 0, "unknown": 0},
        "accuracy": None,
        "zero_shot_accuracy": None,
        "recovered": None,
    }
    return values | others


def stream_activity(changed_images: int = 0, **others: Any) -> dict[str, Any]:
    """What happened in a stream lately."""
    kept = [changed_image(number) for number in range(changed_images)]
    values = {
        "entropy": 0.61,
        "zero_shot_entropy": 0.94,
        "changed_share": 0.082,
        "class_mix": [[label, 400 // (place + 1)] for place, label in enumerate(CLASSES)],
        "changed_images": kept,
        "answers": 1000,
    }
    return values | others


def changed_image(number: int, **others: Any) -> dict[str, Any]:
    """An image that adaptation gave another label."""
    values = {
        "key": f"camera-1/{number:05d}.jpg",
        "label": CLASSES[(number + 1) % len(CLASSES)],
        "probability": 0.55 + 0.05 * (number % 7),
        "zero_shot_label": CLASSES[number % len(CLASSES)],
        "zero_shot_probability": 0.31 + 0.02 * (number % 7),
        "time": 1_790_000_000.0 - 60 * number,
        "thumbnail": base64.b64encode(jpeg(number)).decode(),
    }
    return values | others


def jpeg(number: int) -> bytes:
    """A small JPEG of two colours."""
    image = Image.linear_gradient("L").resize((96, 72)).convert("RGB")
    tint = Image.new("RGB", image.size, (60 + 37 * number % 190, 120, 40 + 71 * number % 200))
    file = io.BytesIO()
    Image.blend(image, tint, 0.6).save(file, "JPEG")
    return file.getvalue()


class FakeService:
    """A server on a free port of this machine; use it in a ``with`` block.

    Attributes:
        token: What clients must send; None if they need none.
        streams: By name, as the API shows them.
        activities: Likewise; streams without one get an ordinary one.
        answer: What classifying an image gives, in addition to the ordinary values.
        failures: Answers instead of the ordinary ones, by verb and path: status, message, headers.
        requests: Verb, path with query, and body of each request so far.
        accepts_events: Whether clients may listen; those that do are let go when it becomes False.
    """

    def __init__(self) -> None:
        self.token: str | None = None
        self.streams: dict[str, dict[str, Any]] = {}
        self.activities: dict[str, dict[str, Any]] = {}
        self.answer: dict[str, Any] = {}
        self.failures: dict[tuple[str, str], tuple[int, str, Mapping[str, str]]] = {}
        self.requests: list[tuple[str, str, bytes]] = []
        self.accepts_events = True
        self.published: list[dict[str, Any]] = []
        self.changed = threading.Condition()

    def __enter__(self) -> "FakeService":
        service = self

        class Handler(_Handler):
            held = service

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        return self

    def __exit__(self, *_: object) -> None:
        self.drop_events()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def publish(self, *samples: dict[str, Any]) -> None:
        """Send statistics to those who listen."""
        with self.changed:
            self.published += samples
            self.changed.notify_all()

    def drop_events(self) -> None:
        """Close the connections of those who listen, and take no new ones."""
        with self.changed:
            self.accepts_events = False
            self.changed.notify_all()

    def sent(self, verb: str) -> list[str]:
        """Paths that were asked for with a verb, in order."""
        return [path for one, path, _ in self.requests if one == verb]

    def add(self, *names: str, **values: Any) -> None:
        """Create streams."""
        for name in names:
            self.streams[name] = stream_info(name, **values)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    held: FakeService

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, verb: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.held.requests.append((verb, self.path, body))
        if (verb, path) == ("GET", "/"):
            self._send(200, dashboard_page().encode(), "text/html; charset=utf-8")
        elif (verb, path) in self.held.failures:
            status, message, headers = self.held.failures[verb, path]
            self._refuse(status, message, headers)
        elif self.held.token and self.headers.get("Authorization") != f"Bearer {self.held.token}":
            self._refuse(401, "a token is needed in the Authorization header")
        elif path == "/v1/events":
            self._events()
        elif path == "/v1/model":
            self._json(MODEL)
        elif path == "/v1/streams":
            self._list()
        else:
            raw = re.fullmatch(r"/v1/streams/([^/]+)/?(\w*)", urlsplit(self.path).path)
            self._stream(verb, unquote(raw[1]), raw[2])

    def _list(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        names = sorted(n for n in self.held.streams if n.startswith(query.get("prefix", "")))
        names = [name for name in names if name > query.get("after", "")]
        page = names[: int(query.get("limit", 100))]
        following = page[-1] if len(names) > len(page) else None
        self._json({"streams": [self.held.streams[name] for name in page], "next": following})

    def _stream(self, verb: str, name: str, action: str) -> None:
        streams = self.held.streams
        if (verb, action) == ("POST", "classify"):
            streams.setdefault(name, stream_info(name, images=0, changed=0))
            streams[name] = streams[name] | {"images": streams[name]["images"] + 1, "last_used": time.time()}
            self._json({"stream": name, "answers": [self._classified()]})
        elif name not in streams:
            self._refuse(404, f"there is no stream {name}")
        elif verb == "DELETE":
            del streams[name]
            self._send(204, b"", None)
        elif action == "activity":
            self._json(self.held.activities.get(name) or stream_activity())
        else:
            if action == "reset":
                streams[name] = stream_info(name, images=0, changed=0, entries=0)
            self._json(streams[name])

    def _classified(self) -> dict[str, Any]:
        values = (0.62, 0.2, 0.09, 0.05, 0.03)
        return {
            "id": "a1",
            "key": "image",
            "label": "cat",
            "probability": 0.62,
            "zero_shot_label": "dog",
            "zero_shot_probability": 0.41,
            "top": [{"label": label, "probability": p} for label, p in zip(CLASSES, values, strict=False)],
            "probabilities": None,
            "adapted": True,
            "changed": True,
            "support": 12,
            "state_version": 33,
            "entropy": 0.7,
            "zero_shot_entropy": 1.1,
            "error": None,
            "queued_ms": 3.2,
            "computed_ms": 21.4,
        } | self.held.answer

    def _events(self) -> None:
        if not self.held.accepts_events:
            self._refuse(503, "the service is being stopped")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        sent = 0
        try:
            while self.held.accepts_events:
                with self.held.changed:
                    new = self.held.published[sent:]
                    if not new:
                        self.held.changed.wait(5)
                        continue
                sent += len(new)
                for sample in new:
                    self.wfile.write(f"event: statistics\ndata: {json.dumps(sample)}\n\n".encode())
                self.wfile.flush()
        except OSError:
            pass  # the page was closed

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), "application/json")

    def _refuse(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps({"error": {"code": "code", "message": message}}).encode()
        self._send(status, body, "application/json", headers)

    def _send(
        self, status: int, body: bytes, kind: str | None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        if kind and kind.startswith("text/html"):
            self.send_header("Content-Security-Policy", dashboard_csp())
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
