"""What a method does between two shared passes, as a CUDA graph: some hundred small kernels start together.

A service has many streams, each with a method of its own that gets a few images at a time. Starting the
kernels one by one would take longer than the passes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.kernels.cuda_graphs import Recorded, Recorder
from ramen.methods._answers import Support
from ramen.methods._pass_sharing import FirstPass, GradientMethod, OwnStep
from ramen.methods._recording import settings_of

# Smaller batches are filled up to one of these, with images that leave no trace; larger ones to a size of the
# shared passes, if these have some.
_SIZES = (8, 32)
_MOST_METHODS = 256  # whose recordings are kept
# Recording takes as long as some steps without a graph: it does not pay for streams of a few images, and each
# time that a memory grows it has to be done again.
_CALLS_TO_RECORD = 8


class RecordedOwnSteps:
    """Runs the steps of many methods, one at a time.

    Args:
        recorder: Whose graphs share their memory.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # the least recently used one first; by their ids, as nothing here keeps a method alive
        self._steps: OrderedDict[int, tuple[ref[GradientMethod], Recorded]] = OrderedDict()

    def records(self, method: GradientMethod) -> bool:
        """Whether a method's steps are recorded."""
        return self._recorder.records_on(method.classifier.device) and method.records_steps

    def __call__(
        self, method: GradientMethod, first: FirstPass, usable: Tensor, sizes: Sequence[int] = ()
    ) -> OwnStep:
        """Learn from a batch.

        Args:
            method: What learns.
            first: The batch.
            usable: Which of its images may leave a trace.
            sizes: Of the shared passes, the smallest first.
        """
        count = len(usable)
        size = next((size for size in (*_SIZES, *sizes) if size >= count), count)
        admitted = [memory.admit(count) for memory in method.memories.values()]
        start = next((numbers.start for numbers in admitted if numbers is not None), method.images_seen)
        known = (first.embeddings, first.logits, first.entropies, first.gradients, usable)
        affine, kept, *entries = self._recorded(method)(
            *(_filled_up(tensor, size) for tensor in known),
            torch.arange(start, start + size, device=usable.device).clamp_max(start + count - 1),
            settings=settings_of(method),
        )
        support = Support(*(entry[:count] for entry in entries))
        return OwnStep(affine[:count], kept[:count], lambda: support)

    def _recorded(self, method: GradientMethod) -> Recorded:
        known = self._steps.get(id(method))
        if known is None or known[0]() is not method:
            weak = ref(method)
            known = self._steps[id(method)] = (
                weak,
                self._recorder.record(partial(_step, weak), calls=_CALLS_TO_RECORD),
            )
        self._steps.move_to_end(id(method))
        while len(self._steps) > _MOST_METHODS:
            self._steps.popitem(last=False)
        return known[1]


def _filled_up(tensor: Tensor, size: int) -> Tensor:
    missing = size - len(tensor)
    return F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, missing)) if missing else tensor


def _step(
    method_of: "ref[GradientMethod]",
    embeddings: Tensor,
    logits: Tensor,
    entropies: Tensor,
    gradients: Tensor,
    usable: Tensor,
    numbers: Tensor,
    *,
    settings: Any,
) -> tuple[Tensor, ...]:
    """The step as a function of tensors; what it keeps, it changes in place."""
    method = method_of()
    assert method is not None
    for memory in method.memories.values():
        memory.announce(None, numbers)
    own = method.step(FirstPass(embeddings, logits, entropies, gradients), usable)
    method.store_states()
    entries = own.support()
    return own.affine, own.usable, *(getattr(entries, field.name) for field in fields(entries))
