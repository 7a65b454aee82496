"""R15: the answers of a tenant do not depend on what others send, though they share batches.

Logits may differ without ``--invariant``. A pass with other images rounds differently in the last digits, and
Ramen's step takes the sign of each coordinate of a sum of gradients: next to zero, rounding decides it. So
the same images are also answered alone and beside another stream, and steps compared coordinate by
coordinate.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor

from ramen.client.operations import ServerOverloadedError, StreamAnswer
from ramen.methods import predict_together
from ramen.methods._passes import Prediction, Seen
from ramen.methods.ramen import OwnStep, Ramen
from ramen.serve.engine.in_thread import EngineInThread
from ramen.serve.engine.stream_cache import StreamMethods
from ramen.serve.settings import EngineSettings
from service_checks.logits import LARGEST_DIFFERENCE, difference
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import Pixels, domain_images, sent

TITLE = "a tenant with and without another's traffic"


def run(options: CheckOptions, images: int | None = None) -> Findings:
    """Compare a stream of so many images alone with the same stream beside others."""
    images = options.pick(240, 2000) if images is None else images
    found = Findings("R15")
    for invariant in (True, False):
        alone, _ = _answers(options, images, invariant, beside=False)
        beside, shared = _answers(options, images, invariant, beside=True)
        seen = difference(alone, beside)
        kind = "invariant" if invariant else "not invariant"
        measured = f"{shared:.1f} images per batch"
        found.expect(f"{kind}: batches were shared", "yes", shared > 1, measured, shared)
        if invariant:
            found.expect_zero("invariant: answers with another bit", seen.bits, seen.compared)
        else:
            found.expect_zero("not invariant: other labels", seen.labels, seen.compared)
            what = "not invariant: difference of logits"
            found.expect_at_most(what, seen.logits, LARGEST_DIFFERENCE, form=".1e")
    _add_reason(found, options, images)
    return found


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
            answers += engine.submit("tenant-a", sent(own[place : place + 1])).future.result(120)
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


@dataclass(frozen=True)
class _Step:
    """One image, answered alone and beside others."""

    flipped: int  # coordinates of the step that have another sign
    apart: float  # the largest difference of a logit


def _add_reason(found: Findings, options: CheckOptions, images: int) -> None:
    """Whether steps whose coordinates all have the same sign agree, and how many others there are."""
    steps = list(_steps_compared(options, images))
    flipped, equal = [one for one in steps if one.flipped], [one for one in steps if not one.flipped]
    most = max(one.flipped for one in steps)
    coordinates = options.classifier.encoder.base.numel()
    apart = max((one.apart for one in flipped), default=0.0)
    text = f"{len(flipped)} of {len(steps)}, at most {most} of {coordinates:,} coordinates; "
    text += f"logits up to {apart:.1e} apart"
    found.note("not invariant: steps with a sign that rounding has flipped", text, len(flipped))
    largest = max((one.apart for one in equal), default=0.0)
    what = "not invariant: difference of logits in the other steps"
    found.expect_at_most(what, largest, LARGEST_DIFFERENCE, form=".1e")


def _steps_compared(options: CheckOptions, images: int) -> Iterator[_Step]:
    classifier = options.classifier
    methods = StreamMethods(classifier, "ramen", {}, EngineSettings().stream_memory)
    alone, beside, other = (methods.create() for _ in range(3))
    own, others = (
        classifier.preprocess(
            torch.from_numpy(domain_images(domain, count, options.image_size)).permute(0, 3, 1, 2)
        )
        for domain, count in ((0, min(images, 200)), (9, 64))
    )
    with _steps_taken() as taken:
        for number in range(images):
            image = own[number % len(own)][None]
            more = others[torch.arange(number, number + 1 + number % 7) % len(others)]
            first = _centred(predict_together([(alone, image)])[0])
            second = _centred(predict_together([(beside, image), (other, more)])[0])
            base = classifier.encoder.base
            signs = [torch.sign(taken[id(method)] - base) for method in (alone, beside)]
            yield _Step(int((signs[0] != signs[1]).sum()), float((first - second).abs().max()))


@contextmanager
def _steps_taken() -> Iterator[dict[int, Tensor]]:
    """The norm parameters after the last step of each method, by its id, while the block lasts."""
    taken: dict[int, Tensor] = {}
    plain = Ramen.step

    def step(self: Ramen, seen: Seen, usable: Tensor, storable: Tensor | None = None) -> OwnStep:
        own = plain(self, seen, usable, storable)
        taken[id(self)] = own.affine.clone()
        return own

    with mock.patch.object(Ramen, "step", step):
        yield taken


def _centred(prediction: Prediction | Exception) -> Tensor:
    if isinstance(prediction, Exception):
        raise prediction
    logits = prediction.logits.float()
    return logits - logits.mean(1, keepdim=True)
