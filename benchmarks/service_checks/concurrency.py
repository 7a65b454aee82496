"""R8: 64 threads send to several streams. Every answer belongs to its request; none is lost, none doubled."""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from service_checks.http_connection import Address, send
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import Pixels, classify_path, mixed_images, raw_request
from service_checks.server_process import ramen_server

TITLE = "many clients at once"
_STREAMS = 5
_PATIENCE = 600.0  # seconds until threads that have not ended are reported
_TOLERANCE = 1e-3  # of a zero-shot probability in a batch of another size


class _Ledger:
    """Sends, and notes what threads were answered."""

    def __init__(self, address: Address, pixels: Pixels) -> None:
        self.address, self.pixels = address, pixels
        self.expected = []  # what the model says about each image without adaptation
        for image in pixels:
            answer = send(address, raw_request("alone", image[None])).json()["answers"][0]
            self.expected.append((answer["zero_shot_label"], answer["zero_shot_probability"]))
        self.ids, self.images = Counter[str](), Counter[str]()
        self.statuses, self.wrong = Counter[int](), 0
        self._lock = threading.Lock()

    def send(self, number: int, requests: int) -> None:
        """What one thread does."""
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=120)
        for request in range(requests):
            stream = f"stream-{(number + request) % _STREAMS}"
            first = (7 * number + request) % len(self.pixels)
            places = [(first + place) % len(self.pixels) for place in range(1 + (number + request) % 3)]
            shape = ",".join(map(str, (len(places), *self.pixels.shape[1:])))
            headers = {"Content-Type": "application/x-ramen-uint8", "X-Shape": shape}
            connection.request("POST", classify_path(stream), self.pixels[places].tobytes(), headers)
            reply = connection.getresponse()
            content = json.loads(reply.read())
            with self._lock:
                self.statuses[reply.status] += 1
                if reply.status == 200:
                    self._note(stream, content, places)
        connection.close()

    def _note(self, stream: str, content: dict[str, Any], places: Sequence[int]) -> None:
        answers = content["answers"]
        self.images[stream] += len(answers)
        self.ids.update(answer["id"] for answer in answers)
        is_right = content["stream"] == stream and len(answers) == len(places)
        for answer, place in zip(answers, places, strict=False):
            label, probability = self.expected[place]
            is_right &= answer["zero_shot_label"] == label
            is_right &= abs(answer["zero_shot_probability"] - probability) < _TOLERANCE
        self.wrong += not is_right


def run(options: CheckOptions, threads: int = 64, requests: int | None = None) -> Findings:
    """Send so many requests from each of many threads."""
    requests = options.pick(40, 1000) if requests is None else requests
    queue = max(1024, 8 * threads)
    with ramen_server(options, queue_images=queue, state=str(options.folder / "many")) as server:
        ledger = _Ledger(server.address, mixed_images(24, options.image_size))
        workers = [
            threading.Thread(target=ledger.send, args=(number, requests), daemon=True)
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
    found, total = Findings("R8"), sum(ledger.images.values())
    found.expect_zero("threads that did not end", hanging, threads)
    found.expect_count("requests with an answer", ledger.statuses[200], threads * requests)
    doubled = sum(count > 1 for count in ledger.ids.values())
    found.expect_zero("answers that came twice", doubled, len(ledger.ids))
    found.expect_zero("answers that belong to another image", ledger.wrong, total)
    apart = sum(abs(seen[name] - count) for name, count in ledger.images.items())
    found.expect_zero("images that streams have seen beside those accepted", apart, total)
    found.note("images per second", f"{total / seconds:,.0f}", total / seconds)
    found.details = {"statuses": dict(ledger.statuses), "streams": dict(seen), "seconds": seconds}
    return found
