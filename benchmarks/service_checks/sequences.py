"""Streams whose images come in a fixed order: a run with interruptions can be compared with one without.

The images that a stream has seen decide which come next. A client that lost its server asks the new one how
far the stream has come, and continues from there; what it is answered then must be what it was answered
before, and what a server answers that was never stopped.
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service_checks.http_connection import Address, HttpConnection, PreparedRequest
from service_checks.sent_images import Pixels, json_request, raw_request

_TIMES = ("id", "queued_ms", "computed_ms")  # of an answer: not the same in another run
Answers = dict[tuple[str, int], dict[str, Any]]  # by stream and position


@dataclass
class ImageSequence:
    """One stream."""

    stream: str
    images: Pixels  # what comes, over and over
    position: int | None = 0  # the image that comes next; None if the server has to be asked
    received: list[tuple[float, int]] = field(default_factory=list)  # when, and the version of the state
    resumed: list[int] = field(default_factory=list)  # what servers said how far the stream had come

    def request(self, position: int, most: int) -> PreparedRequest:
        """The images from a position on; how many is drawn, but always the same for a position."""
        count = random.Random(f"{self.stream} {position}").randint(1, most)
        places = [place % len(self.images) for place in range(position, position + count)]
        return raw_request(self.stream, self.images[places], "?probabilities=all")


class SequenceDriver:
    """Sends sequences at the same time, one request each, and keeps all answers.

    Args:
        sequences: What to send.
        most: Images per request.

    Attributes:
        answers: By stream and position of the image.
        differences: Answers for the same image of the same stream that were not the same.
        repeated: How many could be compared.
        failures: Answers that were not 200.
    """

    def __init__(self, sequences: Sequence[ImageSequence], most: int = 3) -> None:
        self.sequences, self._most = sequences, most
        self.answers: Answers = {}
        self.differences = self.repeated = 0
        self.failures: dict[int, int] = defaultdict(int)

    async def run(self, address: Address, until: Mapping[str, int] | float) -> None:
        """Send until positions are reached, or for so many seconds, or until the server is gone."""
        await asyncio.gather(*(self._client(address, one, until) for one in self.sequences))

    async def _client(self, address: Address, one: ImageSequence, until: Mapping[str, int] | float) -> None:
        connection = HttpConnection(address)
        end = time.monotonic() + until if isinstance(until, float) else float("inf")
        last = float("inf") if isinstance(until, float) else until[one.stream]
        try:
            while time.monotonic() < end and (one.position is None or one.position < last):
                await self._step(connection, one)
        except OSError:
            one.position = None  # the last request may have been learned from
        finally:
            connection.close()

    async def _step(self, connection: HttpConnection, one: ImageSequence) -> None:
        if one.position is None:
            # A request without a usable image is answered with the state's version, and nothing is learned.
            nothing = json_request(one.stream, [("nothing", b"no image")] * 2)
            reply = await connection.exchange(nothing)
            one.position = int(reply.json()["answers"][0]["state_version"])
            one.resumed.append(one.position)
        request = one.request(one.position, self._most)
        reply = await connection.exchange(request)
        if reply.status != 200:
            self.failures[reply.status] += 1
            one.position = None
            return
        answers = reply.json()["answers"]
        one.received.append((time.monotonic(), answers[-1]["state_version"]))
        for position, answer in enumerate(answers, one.position):
            plain = {name: value for name, value in answer.items() if name not in _TIMES}
            known = self.answers.setdefault((one.stream, position), plain)
            if known is not plain:
                self.repeated += 1
                self.differences += known != plain
        one.position += request.images


def compare(answers: Answers, reference: Answers) -> tuple[int, int]:
    """How many answers both have, and how many of these differ."""
    shared = answers.keys() & reference.keys()
    return len(shared), sum(answers[place] != reference[place] for place in shared)
