"""R5: an image gets the same answer alone and among 31 others, if its stream has seen the same before.

The others belong to 31 other streams, or follow it in the same request: a stream's answers are causal, so
that images that come later do not matter.
"""

from typing import Any

from ramen.client.operations import StreamAnswer
from ramen.serve.engine.in_thread import EngineInThread
from service_checks.logits import LARGEST_DIFFERENCE, difference
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import Pixels, domain_images, mixed_images, sent

TITLE = "the same answer alone and in a batch"


def run(options: CheckOptions, trials: int | None = None, others: int = 31, warm_up: int = 64) -> Findings:
    """Ask so many images alone and among others, each of a stream that has seen ``warm_up`` images."""
    trials = options.pick(12, 100) if trials is None else trials
    found = Findings("R5")
    for invariant in (False, True):
        _, alone = _ask(options, (trials, others, warm_up), invariant, "alone")
        for how, name in (
            ("other streams", f"alone and with {others} of other streams"),
            ("same request", f"alone and with {others} in the same request"),
        ):
            batches, answers = _ask(options, (trials, others, warm_up), invariant, how)
            seen = difference(alone, answers)
            if invariant:
                found.expect_zero(f"{name}, invariant: answers with another bit", seen.bits, seen.compared)
            else:
                found.expect_zero(f"{name}: other labels", seen.labels, seen.compared)
                what = f"{name}: difference of logits"
                found.expect_at_most(what, seen.logits, LARGEST_DIFFERENCE, form=".1e")
            if how == "other streams":
                found.expect_count(f"{name}: batches for {trials} trials", batches, trials)
    return found


def _ask(
    options: CheckOptions, counts: tuple[int, int, int], invariant: bool, how: str
) -> tuple[int, list[StreamAnswer]]:
    """The answer for the first image of each trial, and how many batches the trials took."""
    (trials, others, warm_up), size = counts, options.image_size
    batch = others + 1
    seen = [domain_images(trial, warm_up, size) for trial in range(trials)]
    asked = mixed_images(trials * batch, size, seed=1).reshape(trials, batch, *size, 3)
    settings: dict[str, Any] = {
        "max_batch": batch,
        "invariant": invariant,
        "max_queue_images": 4 * batch,
        "state": str(options.folder / f"{how} {invariant}"),
    }
    with options.engine(max_delay_ms=0.0, **settings) as engine:
        for trial, images in enumerate(seen):
            for first in range(0, warm_up, batch):
                _answers(engine, f"trial-{trial}", images[first : first + batch])
        if how != "other streams":
            count = 1 if how == "alone" else batch
            return trials, [
                _answers(engine, f"trial-{trial}", images[:count])[0] for trial, images in enumerate(asked)
            ]
        for number in range(1, batch):
            engine.create_stream(f"other-{number}")
    with options.engine(max_delay_ms=10_000.0, **settings) as engine:  # it waits until a batch is full
        batches, answers = engine.statistics().batches, []
        for trial, images in enumerate(asked):
            names = [f"trial-{trial}", *(f"other-{number}" for number in range(1, batch))]
            tickets = [
                engine.submit(name, sent(images[number : number + 1])) for number, name in enumerate(names)
            ]
            results = [ticket.future.result(120)[0] for ticket in tickets]
            answers.append(results[0])
        return engine.statistics().batches - batches, answers


def _answers(engine: EngineInThread, stream: str, images: Pixels) -> list[StreamAnswer]:
    return list(engine.submit(stream, sent(images)).future.result(120))
