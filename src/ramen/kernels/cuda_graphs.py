"""Functions of tensors as CUDA graphs: their kernels start together instead of one by one.

For small batches most of the time goes into starting kernels. A graph is recorded once a shape has been seen
twice, so that a stream's last short batch costs nothing but itself, and is replayed from then on.
"""

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

CALLS_TO_RECORD = 3  # the first ones are as usual: kernels are compiled and chosen, which cannot be recorded
_MOST_SHAPES = 8  # of a function

_RECORDING = Lock()  # one at a time in the whole process, as CUDA wants it

Function = Callable[..., tuple[Tensor, ...]]
Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


class Graph(Protocol):
    """What a recording of a function is."""

    def replay(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What the function does, for other tensors of the same shapes."""


class Recorder:
    """Records functions that are called one after the other, so that their graphs can share memory.

    Args:
        enabled: Without it functions stay what they are.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._pool: Any = None
        self._alive: WeakSet[_CudaGraph] = WeakSet()
        self._warned = False

    def record(self, function: Function) -> "Recorded":
        """``function``, which takes and returns tensors on one device and waits for nothing.

        It may also change tensors in place that it does not take, as long as these stay where they are, and
        take keyword arguments that are no tensors.
        """
        return Recorded(self, function)

    def records_on(self, device: torch.device) -> bool:
        """Whether functions of tensors there are recorded."""
        return self.enabled and device.type == "cuda"

    def graph(self, function: Function, tensors: tuple[Tensor, ...]) -> Graph:
        """A recording of ``function`` for tensors like these. The function's work is not done by that."""
        if not self._alive:
            self._pool = torch.cuda.graph_pool_handle()  # a pool dies with the last of its graphs
        graph = _CudaGraph(self._pool, function, tensors)
        self._alive.add(graph)
        return graph

    def graph_if_possible(self, function: Function, tensors: tuple[Tensor, ...]) -> Graph | None:
        """Likewise; where that fails, None, with a warning at the first time: a stream goes on without."""
        try:
            return self.graph(function, tensors)
        except RuntimeError as error:  # too little memory is one
            if not self._warned:
                self._warned = True
                warnings.warn(
                    "no CUDA graph could be recorded: batches of this size are answered without one, "
                    f"which is slower for small batches ({error})",
                    stacklevel=3,
                )
            return None


class Recorded:
    """A function that is recorded for each shape of its arguments; without a GPU it stays itself."""

    def __init__(self, recorder: Recorder, function: Function) -> None:
        self.recorder = recorder
        self.function = function
        self._frozen: dict[str, Hashable] = {}
        self._calls: dict[Shapes, int] = {}
        self._graphs: dict[Shapes, Graph | None] = {}  # None: it could not be recorded

    def __call__(self, *tensors: Tensor, **frozen: Hashable) -> tuple[Tensor, ...]:
        """What the function returns.

        Args:
            tensors: Its arguments.
            frozen: Its keyword arguments; a recording is good for these alone, and new ones end all others.
        """
        function = partial(self.function, **frozen)
        if not self.recorder.records_on(tensors[0].device):
            return function(*tensors)
        if frozen != self._frozen:
            self._frozen = frozen
            self._calls.clear()
            self._graphs.clear()
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        if shapes not in self._graphs:
            calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
            if calls < CALLS_TO_RECORD or len(self._graphs) >= _MOST_SHAPES:
                return function(*tensors)
            self._graphs[shapes] = self.recorder.graph_if_possible(function, tensors)
        graph = self._graphs[shapes]
        return function(*tensors) if graph is None else graph.replay(tensors)


class _CudaGraph:
    def __init__(self, pool: Any, function: Function, tensors: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(tensor.clone() for tensor in tensors)
        self._graph = torch.cuda.CUDAGraph()
        with _recording(self._graph, pool, tensors[0].device):
            self._outputs = function(*self._inputs)

    def replay(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for place, tensor in zip(self._inputs, tensors, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return tuple(output.clone() for output in self._outputs)  # the next replay writes into the same place


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> Iterator[None]:
    """A block whose kernels go into ``graph``, or an error with everything as it was."""
    failure: RuntimeError | None = None
    with (
        _RECORDING,
        _no_garbage_collection(),
        torch.cuda.device(device),
        torch.cuda.stream(torch.cuda.current_stream(device)),  # back to it, also if a recording ends badly
        # other threads may go on and allocate: they prepare the batches to come
        torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
    ):
        try:
            yield
        except RuntimeError as error:  # the recording has to end in order
            failure = error
    if failure is not None:
        raise failure


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
