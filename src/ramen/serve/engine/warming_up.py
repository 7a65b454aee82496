"""Blank batches before the first request: what a GPU does for the first time takes long.

Kernels are loaded, compiled and recorded, memory of the device is allocated and memory of the host pinned.
Each of these may hold up everything that is being computed, for a quarter of a second in the worst case.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from ramen.kernels.cuda_graphs import CALLS_TO_RECORD
from ramen.serve.batch_answers import BatchAnswers, PendingAnswers
from ramen.serve.engine.computing import BatchComputing

_SECONDS = 15.0  # after which batches that are not necessary are left out
_MOST_COUNTS = 128  # of images for which a batch is computed, beside the sizes of the passes


def warm_up(computing: BatchComputing, answers: BatchAnswers) -> None:
    """Compute blank batches until nothing is left to do for the first time, as far as can be known.

    What remains is that of a stream itself: its memory, which grows a few times, and the recording of its
    steps. On a CPU there are no sizes to get ready for, and nothing is done.

    Args:
        computing: Computes batches.
        answers: Of a fresh method, which is of no use afterwards.
    """
    started, sizes = time.monotonic(), computing.batch_sizes
    if not sizes:
        return
    for size in reversed(sizes):  # the largest first: batches of the others find room in its memory
        # one more than are needed to record: pinned memory for as many answers that are on their way
        _compute(computing, answers, [_tickets(size, n) for n in range(CALLS_TO_RECORD + 1)])
    with ExitStack() as stack:  # other kernels are the best for a memory that is full
        for memory in answers.method.memories.values():
            stack.enter_context(memory.rehearsal())
        _compute(computing, answers, [_tickets(size) for size in sizes])
    for count in _others(sizes):  # they pass in one of these sizes, but are copied and stored as they are
        if time.monotonic() - started > _SECONDS:
            break
        _compute(computing, answers, [_tickets(count)])


def _tickets(images: int, number: int = 0) -> list[int]:
    """Images per ticket: all in one for odd numbers, else in two, which are joined on their way."""
    return [images] if images == 1 or number % 2 else [1, images - 1]


def _others(sizes: Sequence[int]) -> Iterable[int]:
    most = max(sizes, default=0)
    return [count for count in range(most, 0, -max(1, most // _MOST_COUNTS)) if count not in sizes]


def _compute(computing: BatchComputing, answers: BatchAnswers, batches: Iterable[Sequence[int]]) -> None:
    begun = [computing.begin_blank(answers, tickets) for tickets in batches]
    for pending in begun:
        if isinstance(pending, PendingAnswers):  # a method that fails is no reason not to start
            pending.wait()
