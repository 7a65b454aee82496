"""R5: an image gets the same answer alone and among 31 others, if its stream has seen the same before.

The others belong to 31 other streams, or follow it in the same request: a stream's answers are causal, so
that images that come later do not matter.
"""

from typing import Any

from ramen.client.operations import StreamAnswer
from ramen.serve.engine.in_thread import EngineInThread
from service_checks.logits import Difference, difference
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import Pixels, domain_images, mixed_images, sent

TITLE = "the same answer alone and in a batch"
LARGEST_DIFFERENCE = 1e-4  # of logits, in fp32


def run(options: CheckOptions, trials: int | None = None, others: int = 31, warm_up: int = 64) -> Findings:
    """Ask the same images alone and in a batch.

    Args:
        options: Of the run.
        trials: How many images.
        others: How many are in the batch besides.
        warm_up: Images that a stream has seen before.
    """
    trials = options.pick(12, 100) if trials is None else trials
    found = Findings("R5")
    for invariant in (False, True):
        _, seen = _ask(options, (trials, others, warm_up), invariant, "alone")
        for how in ("other streams", "same request"):
            batches, answers = _ask(options, (trials, others, warm_up), invariant, how)
            name = f"alone and with {others} {'of ' + how if how == 'other streams' else 'in the ' + how}"
            _add(found, difference(seen, answers), name, invariant)
            if how == "other streams":
                shared = batches == trials
                found.expect(
                    f"{name}: computed in one batch",
                    f"{trials} of {trials}",
                    shared,
                    f"{batches} batches for {trials} trials",
                    batches,
                )
    return found


def _add(found: Findings, seen: Difference, name: str, invariant: bool) -> None:
    if invariant:
        found.expect_zero(f"{name}, invariant: answers with another bit", seen.bits, seen.compared)
        return
    found.expect_zero(f"{name}: other labels", seen.labels, seen.compared)
    found.expect(
        f"{name}: difference of logits",
        f"at most {LARGEST_DIFFERENCE:g}",
        seen.logits <= LARGEST_DIFFERENCE,
        f"{seen.logits:.1e}",
        seen.logits,
    )


def _ask(
    options: CheckOptions, counts: tuple[int, int, int], invariant: bool, how: str
) -> tuple[int, list[StreamAnswer]]:
    """The answer for the first image of each trial, and how many batches the trials took."""
    (trials, others, warm_up), size = counts, options.image_size
    batch = others + 1
    seen = [domain_images(trial, warm_up, size) for trial in range(trials)]
    asked = mixed_images(trials * batch, size, seed=1).reshape(trials, batch, *size, 3)
    settings: dict[str, Any] = {"max_batch": batch, "invariant": invariant, "max_queue_images": 4 * batch}
    with options.engine(
        max_delay_ms=0.0, state=str(options.folder / f"{how} {invariant}"), **settings
    ) as engine:
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
    patient = options.engine(
        max_delay_ms=10_000.0, state=str(options.folder / f"{how} {invariant}"), **settings
    )
    with patient as engine:  # it waits until a batch is full
        batches = engine.statistics().batches
        answers = []
        for trial, images in enumerate(asked):
            tickets = [
                engine.submit(f"other-{number}", sent(images[number : number + 1]))
                for number in range(1, batch)
            ]
            own = engine.submit(f"trial-{trial}", sent(images[:1]))
            answers.append(own.future.result(120)[0])
            for ticket in tickets:
                ticket.future.result(120)
        return engine.statistics().batches - batches, answers


def _answers(engine: EngineInThread, stream: str, images: Pixels) -> list[StreamAnswer]:
    return list(engine.submit(stream, sent(images)).future.result(120))
