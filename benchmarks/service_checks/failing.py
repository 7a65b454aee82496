"""R13: adaptation fails in a share of the steps. All images are answered, these zero-shot and marked."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from torch import Tensor

from ramen.client.operations import StreamAnswer
from ramen.methods._passes import Seen
from ramen.methods.ramen import OwnStep, Ramen
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import mixed_images, sent

TITLE = "adaptation that fails"
_SHARE = 0.3
_STREAMS = 4


def run(options: CheckOptions, requests: int | None = None) -> Findings:
    """Let steps of the method fail while so many requests are answered."""
    requests = options.pick(200, 2000) if requests is None else requests
    pixels = mixed_images(64, options.image_size)
    draws = random.Random(0)
    answers: list[StreamAnswer] = []
    with failing_steps(_SHARE) as failed, options.engine(max_delay_ms=1.0) as engine:
        for start in range(0, requests, _STREAMS):
            tickets = []
            for number in range(min(_STREAMS, requests - start)):
                first = draws.randrange(len(pixels) - 4)
                tickets.append(engine.submit(f"stream-{number}", sent(pixels[first : first + 1 + number])))
            for ticket in tickets:
                answers += ticket.future.result(120)
        fallbacks = engine.statistics().fallbacks
    found = Findings("R13")
    results = [answer.result for answer in answers]
    marked = [result for result in results if not result.adapted]
    found.note("steps that failed", f"{failed[0]:,} of {failed[1]:,}", failed[0])
    unanswered = sum(result.label is None for result in results)
    found.expect_zero("images without an answer", unanswered, len(answers))
    found.expect_count("images of these steps with adapted=false", len(marked), failed[2])
    other = sum(result.label != result.zero_shot_label for result in marked)
    found.expect_zero("of these, answered with another label than zero-shot", other, len(marked))
    found.expect_count("fallbacks that the engine counts", fallbacks, failed[2])
    return found


@contextmanager
def failing_steps(share: float) -> Iterator[list[int]]:
    """A block in which a share of Ramen's steps raise; yields how many, of how many, with how many images."""
    step, draws, counts = Ramen.step, random.Random(1), [0, 0, 0]

    def fail_sometimes(self: Ramen, seen: Seen, usable: Tensor, storable: Tensor | None = None) -> OwnStep:
        counts[1] += 1
        if draws.random() < share:
            counts[0] += 1
            counts[2] += len(usable)
            raise RuntimeError("a step that fails, as the benchmark wants it")
        return step(self, seen, usable, storable)

    with mock.patch.object(Ramen, "step", fail_sometimes):
        yield counts
