"""R15: the answers of a tenant do not depend on what others send, though they share batches."""

import threading

from ramen.client.operations import ServerOverloadedError, StreamAnswer
from ramen.serve.engine.in_thread import EngineInThread
from service_checks.batches import LARGEST_DIFFERENCE
from service_checks.logits import difference
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import Pixels, domain_images, sent
from service_checks.sign_flips import SignFlips, count_sign_flips

TITLE = "a tenant with and without another's traffic"


def run(options: CheckOptions, images: int | None = None) -> Findings:
    """Compare a stream alone with the same stream beside others.

    Args:
        options: Of the run.
        images: How many are in the stream.
    """
    images = options.pick(240, 2000) if images is None else images
    found = Findings("R15")
    for invariant in (True, False):
        alone, _ = _answers(options, images, invariant, beside=False)
        beside, shared = _answers(options, images, invariant, beside=True)
        seen = difference(alone, beside)
        kind = "invariant" if invariant else "not invariant"
        found.expect(
            f"{kind}: batches were shared", "yes", shared > 1, f"{shared:.1f} images per batch", shared
        )
        if invariant:
            found.expect_zero("invariant: answers with another bit", seen.bits, seen.compared)
        else:
            found.expect_zero("not invariant: other labels", seen.labels, seen.compared)
            found.expect(
                "not invariant: difference of logits",
                f"at most {LARGEST_DIFFERENCE:g}",
                seen.logits <= LARGEST_DIFFERENCE,
                f"{seen.logits:.1e}",
                seen.logits,
            )
    _add_reason(found, count_sign_flips(options, images))
    return found


def _add_reason(found: Findings, flips: SignFlips) -> None:
    """Whether steps whose coordinates all have the same sign agree, and how many others there are."""
    count, most = sum(number > 0 for number in flips.flipped), max(flips.flipped)
    found.note(
        "not invariant: steps with a sign that rounding has flipped",
        f"{count} of {len(flips.flipped)}, at most {most} of {flips.coordinates:,} coordinates; "
        f"logits up to {flips.largest(flipped=True):.1e} apart",
        count,
    )
    largest = flips.largest(flipped=False)
    found.expect(
        "not invariant: difference of logits in the other steps",
        f"at most {LARGEST_DIFFERENCE:g}",
        largest <= LARGEST_DIFFERENCE,
        f"{largest:.1e}",
        largest,
    )


def _answers(
    options: CheckOptions, images: int, invariant: bool, *, beside: bool
) -> tuple[list[StreamAnswer], float]:
    """The answers for the tenant, one image per request, and the mean size of a batch."""
    own = domain_images(0, min(images, 200), options.image_size)
    others = domain_images(9, 64, options.image_size)
    ended = threading.Event()
    with options.engine(invariant=invariant, max_delay_ms=2.0) as engine:
        traffic = [
            threading.Thread(target=_traffic, args=(engine, f"tenant-b-{number}", others, ended), daemon=True)
            for number in range(3 if beside else 0)
        ]
        for thread in traffic:
            thread.start()
        answers: list[StreamAnswer] = []
        for number in range(images):
            place = number % len(own)
            ticket = engine.submit("tenant-a", sent(own[place : place + 1]))
            answers += ticket.future.result(120)
        ended.set()
        for thread in traffic:
            thread.join()
        seen = engine.statistics()
    return answers, seen.images / max(seen.batches, 1)


def _traffic(engine: EngineInThread, stream: str, images: Pixels, ended: threading.Event) -> None:
    number = 0
    while not ended.is_set():
        first = number % (len(images) - 4)
        try:
            engine.submit(stream, sent(images[first : first + 1 + number % 4])).future.result(120)
        except ServerOverloadedError:
            continue
        number += 1
