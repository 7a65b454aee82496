"""A method's step, ``adapt``, as one CUDA graph: for every method that says it can be recorded.

A graph starts all kernels of a step together. It holds the addresses of a method's state and the values of
its parameters, so that a step is recorded again when a parameter or the size of a memory has changed. What
the host has to do for a step, counting images and making room for them, stays outside the graph.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor

from ramen.kernels.cuda_graphs import Recorder, recording_holds
from ramen.methods._answers import Answer, Support
from ramen.utils.devices import upload

if TYPE_CHECKING:
    from ramen.methods._base import Method


class RecordedSteps:
    """Runs the steps of one method, those with and those without support.

    Both kinds share the memory of their graphs. It does not keep its method alive, which owns it.
    """

    def __init__(self, method: "Method", recorder: Recorder) -> None:
        self._steps = {support: _Step(ref(method), support) for support in (False, True)}
        self.recorded = {support: recorder.record(step) for support, step in self._steps.items()}

    def __call__(
        self, method: "Method", images: Tensor, usable: Tensor, tags: Tensor | None, support: bool
    ) -> Answer:
        """Answer a batch."""
        device, batch = images.device, len(images)
        admitted = [memory.admit(batch) for memory in method.memories.values()]
        first = next((numbers.start for numbers in admitted if numbers is not None), method.images_seen)
        tensors = self.recorded[support](
            images.to(method.classifier.dtype),  # one recording for images of any type
            usable,
            torch.full((batch,), -1, device=device) if tags is None else upload(tags, device),
            torch.arange(first, first + batch, device=device),
            settings=settings_of(method),
        )
        return self._steps[support].answer(tensors)


@dataclass
class _Step:
    """One kind of step as a function of tensors, which may be recorded."""

    method: "ref[Method]"  # a strong reference would keep the method alive by way of the recording
    support: bool
    has_zero_shot: bool = False  # whether the last answer came with zero-shot logits

    def __call__(
        self, images: Tensor, usable: Tensor, tags: Tensor, numbers: Tensor, *, settings: Any
    ) -> tuple[Tensor, ...]:
        """The parts of the answer that are tensors; the method's state has its new values then."""
        method = self.method()
        assert method is not None
        for memory in method.memories.values():
            memory.announce(tags, numbers)
        answer = method.adapt(images, usable)
        valid = recording_holds()
        if valid is not None and method.memories:
            raise RuntimeError("a step that asks whether something holds cannot be recorded with a memory")
        method.store_states(valid)
        self.has_zero_shot = answer.zero_shot_logits is not None
        zero_shot = (answer.zero_shot_logits,) if answer.zero_shot_logits is not None else ()
        entries = answer.support() if self.support and answer.support is not None else None
        parts = () if entries is None else tuple(getattr(entries, field.name) for field in fields(entries))
        return answer.logits, answer.usable, *zero_shot, *parts

    def answer(self, tensors: tuple[Tensor, ...]) -> Answer:
        """The answer that consists of these parts."""
        logits, usable, *rest = tensors
        zero_shot = rest.pop(0) if self.has_zero_shot else None
        entries = Support(*rest) if rest else None
        return Answer(logits, zero_shot, usable, None if entries is None else lambda: entries)


def settings_of(method: "Method") -> tuple[Any, ...]:
    """What a step depends on beside tensors: a recording is valid for one of these."""
    parameters = tuple(getattr(method, name, None) for name in ("seed", *method.info.defaults))
    return *parameters, *(memory.recording_key() for memory in method.memories.values())
