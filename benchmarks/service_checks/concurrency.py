"""R8: 64 threads send to several streams. Every answer belongs to its request; none is lost, none doubled."""

import collections
import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from service_checks.http_connection import Address, ask
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import Pixels, classify_path, mixed_images
from service_checks.server_process import ramen_server

TITLE = "many clients at once"
_STREAMS = 5
_PATIENCE = 600.0  # seconds until threads that have not ended are reported
_TOLERANCE = 1e-3  # of a zero-shot probability in a batch of another size


@dataclass
class _Ledger:
    """What threads were answered."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ids: collections.Counter[str] = field(default_factory=collections.Counter)
    images: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: int = 0
    statuses: collections.Counter[int] = field(default_factory=collections.Counter)


def run(options: CheckOptions, threads: int = 64, requests: int | None = None) -> Findings:
    """Send from many threads.

    Args:
        options: Of the run.
        threads: How many.
        requests: How many each of them sends.
    """
    requests = options.pick(40, 1000) if requests is None else requests
    pixels = mixed_images(24, options.image_size)
    ledger, found = _Ledger(), Findings("R8")
    with ramen_server(
        options, queue_images=max(1024, 8 * threads), state=str(options.folder / "many")
    ) as server:
        expected = _expected(server.address, pixels)
        workers = [
            threading.Thread(
                target=_send, args=(server.address, number, requests, pixels, expected, ledger), daemon=True
            )
            for number in range(threads)
        ]
        started = time.monotonic()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(0.0, started + _PATIENCE - time.monotonic()))
        seconds = time.monotonic() - started
        hanging = sum(worker.is_alive() for worker in workers)
        seen = {name: server.stream(name)["images"] for name in ledger.images}
    total = sum(ledger.images.values())
    found.expect_zero("threads that did not end", hanging, threads)
    accepted = ledger.statuses[200]
    found.expect(
        "requests with an answer",
        f"{threads * requests:,}",
        accepted == threads * requests,
        f"{accepted:,}",
        accepted,
    )
    doubled = sum(count > 1 for count in ledger.ids.values())
    found.expect_zero("answers that came twice", doubled, len(ledger.ids))
    found.expect_zero("answers that belong to another image", ledger.wrong, total)
    apart = sum(abs(seen[name] - count) for name, count in ledger.images.items())
    found.expect_zero("images that streams have seen beside those accepted", apart, total)
    found.note("images per second", f"{total / seconds:,.0f}", total / seconds)
    found.details = {"statuses": dict(ledger.statuses), "streams": dict(seen), "seconds": seconds}
    return found


def _expected(address: Address, pixels: Pixels) -> list[tuple[str, float]]:
    """What the model says about each image without adaptation."""
    answers = []
    for image in pixels:
        shape = ",".join(map(str, (1, *image.shape)))
        reply = ask(
            address, "POST", classify_path("alone"), image.tobytes(), Content_Type=_RAW, X_Shape=shape
        )
        answer = reply.json()["answers"][0]
        answers.append((answer["zero_shot_label"], answer["zero_shot_probability"]))
    return answers


_RAW = "application/x-ramen-uint8"


def _send(
    address: Address,
    number: int,
    requests: int,
    pixels: Pixels,
    expected: list[tuple[str, float]],
    ledger: _Ledger,
) -> None:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=120)
    for request in range(requests):
        stream = f"stream-{(number + request) % _STREAMS}"
        first = (7 * number + request) % len(pixels)
        places = [(first + place) % len(pixels) for place in range(1 + (number + request) % 3)]
        body = pixels[places].tobytes()
        headers = {"Content-Type": _RAW, "X-Shape": ",".join(map(str, (len(places), *pixels.shape[1:])))}
        connection.request("POST", classify_path(stream), body, headers)
        reply = connection.getresponse()
        content = json.loads(reply.read())
        with ledger.lock:
            ledger.statuses[reply.status] += 1
            if reply.status == 200:
                _note(ledger, stream, content, [expected[place] for place in places])
    connection.close()


def _note(ledger: _Ledger, stream: str, content: dict[str, Any], expected: list[tuple[str, float]]) -> None:
    answers = content["answers"]
    ledger.images[stream] += len(answers)
    ledger.ids.update(answer["id"] for answer in answers)
    is_right = content["stream"] == stream and len(answers) == len(expected)
    for answer, (label, probability) in zip(answers, expected, strict=False):
        is_right &= answer["zero_shot_label"] == label
        is_right &= abs(answer["zero_shot_probability"] - probability) < _TOLERANCE
    ledger.wrong += not is_right
