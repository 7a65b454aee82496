"""Functions of tensors as CUDA graphs: their kernels start together instead of one by one.

For small batches most of the time goes into starting kernels. A graph is recorded once a shape has been seen
twice, so that a stream's last short batch costs nothing but itself, and is replayed from then on.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

CALLS_TO_RECORD = 3  # the first ones are as usual: kernels are compiled and chosen, which cannot be recorded
_MOST_SHAPES = 8  # of a function

Function = Callable[..., tuple[Tensor, ...]]
Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


class Recorder:
    """Records functions that are called one after the other, so that their graphs can share memory.

    Args:
        enabled: Without it functions stay what they are.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.pool: Any = None

    def record(self, function: Function) -> "Recorded":
        """``function``, which takes and returns tensors on one device and waits for nothing."""
        return Recorded(self, function)


class Recorded:
    """A function that is recorded for each shape of its arguments; without a GPU it stays itself."""

    def __init__(self, recorder: Recorder, function: Function) -> None:
        self.recorder = recorder
        self.function = function
        self._calls: dict[Shapes, int] = {}
        self._graphs: dict[Shapes, _Graph] = {}

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What the function returns."""
        if not self.recorder.enabled or tensors[0].device.type != "cuda":
            return self.function(*tensors)
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        if shapes not in self._graphs:
            calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
            if calls < CALLS_TO_RECORD or len(self._graphs) >= _MOST_SHAPES:
                return self.function(*tensors)
            self._graphs[shapes] = _Graph(self.recorder, self.function, tensors)
        return self._graphs[shapes].replay(tensors)


class _Graph:
    def __init__(self, recorder: Recorder, function: Function, tensors: tuple[Tensor, ...]) -> None:
        if recorder.pool is None:
            recorder.pool = torch.cuda.graph_pool_handle()
        self._inputs = tuple(tensor.clone() for tensor in tensors)
        self._graph = torch.cuda.CUDAGraph()
        with (
            _no_garbage_collection(),
            torch.cuda.device(tensors[0].device),
            torch.cuda.graph(self._graph, pool=recorder.pool),
        ):
            self._outputs = function(*self._inputs)

    def replay(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for place, tensor in zip(self._inputs, tensors, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return tuple(output.clone() for output in self._outputs)  # the next replay writes into the same place


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A graph of somebody else that was freed while one is recorded would spoil the recording."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
