"""Functions of tensors as CUDA graphs: their kernels start together instead of one by one.

For small batches most of the time goes into starting kernels. A graph is recorded when a shape comes for the
third time, so that a stream's last short batch costs nothing extra, and is replayed from then on. Recording
takes about as long as the function itself does without a graph: nothing waits for it, and torch's caches stay
as they are.

A recorded function cannot branch on what the device computes. If it almost always goes the same way, it asks
``holds(condition)``: a recording assumes that the condition holds, and a batch for which it does not is
computed again without the graph.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

CALLS_TO_RECORD = 3  # the first ones are as usual: kernels are compiled and chosen, which cannot be recorded
_MOST_SHAPES = 8  # of a function

_RECORDING = Lock()  # CUDA allows one at a time in a process
_WITHIN_RECORDED: ContextVar[bool] = ContextVar("within_recorded", default=False)
_CONDITIONS: ContextVar[list[Tensor] | None] = ContextVar("conditions", default=None)  # None: not recording

Function = Callable[..., tuple[Tensor, ...]]
Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


def holds(condition: Tensor) -> bool:
    """Whether ``condition``, a single truth value, is true.

    Outside a recording this waits for the device. A recording takes it to be true; if it is not when the
    graph is replayed, the call's results are discarded and the function is called itself.
    """
    conditions = _CONDITIONS.get()
    if conditions is None:
        return bool(condition)
    conditions.append(condition)
    return True


def recording_holds() -> Tensor | None:
    """Whether everything holds that the present recording assumes so far; None outside, or if it is nothing.

    A function that changes tensors in place must leave them alone if this is false.
    """
    conditions = _CONDITIONS.get()
    return torch.stack(conditions).all() if conditions else None


class Graph(Protocol):
    """A recording of a function."""

    def replay(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The function's results for other tensors of the same shapes."""


class Recorder:
    """Records functions that are called one after the other, so that their graphs can share memory."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._pool: Any = None
        self._alive: WeakSet[_CudaGraph] = WeakSet()
        self._warned = False

    def record(self, function: Function, *, calls: int = CALLS_TO_RECORD) -> "Recorded":
        """``function``, which takes and returns tensors on one device and does not wait for it.

        It may also change tensors in place that it does not take, as long as these stay at their address,
        and take keyword arguments that are not tensors. If a recorded function calls another one, the inner
        one is part of the outer recording.

        Args:
            function: The function.
            calls: The call with tensors of the same shapes at which it is recorded; at least
                ``CALLS_TO_RECORD``.
        """
        return Recorded(self, function, calls)

    def records_on(self, device: torch.device) -> bool:
        """Whether functions of tensors there are recorded."""
        return self.enabled and device.type == "cuda"

    def graph(self, function: Function, tensors: tuple[Tensor, ...]) -> Graph:
        """A recording of ``function`` for tensors like these. Recording does not do the function's work."""
        if not self._alive:
            self._pool = torch.cuda.graph_pool_handle()  # a memory pool dies with the last of its graphs
        try:
            graph = _CudaGraph(self._pool, function, tensors)
        except torch.OutOfMemoryError:  # while something is recorded, torch cannot give its caches away
            gc.collect()
            torch.cuda.empty_cache()
            graph = _CudaGraph(self._pool, function, tensors)
        self._alive.add(graph)
        return graph

    def graph_if_possible(self, function: Function, tensors: tuple[Tensor, ...]) -> Graph | None:
        """The same, or None if recording fails, with a warning the first time: the stream continues."""
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


@dataclass(frozen=True)
class _Recording:
    graph: Graph
    guarded: bool  # whether the last result says if the recording's assumptions hold


class Recorded:
    """A function that is recorded for each shape of its arguments; without a GPU it is simply called."""

    def __init__(self, recorder: Recorder, function: Function, calls: int) -> None:
        self.recorder = recorder
        self.function = function
        self._calls_to_record = calls
        self._frozen: dict[str, Any] = {}
        self._calls: dict[Shapes, int] = {}
        self._recordings: dict[Shapes, _Recording | None] = {}  # None: it could not be recorded

    def __call__(self, *tensors: Tensor, **frozen: Any) -> tuple[Tensor, ...]:
        """The function's results; other keyword arguments discard all recordings."""
        function = partial(self.function, **frozen)
        if _WITHIN_RECORDED.get() or not self.recorder.records_on(tensors[0].device):
            return function(*tensors)
        if frozen != self._frozen:
            self._frozen = frozen
            self._calls.clear()
            self._recordings.clear()
        with _set(_WITHIN_RECORDED, True):
            recording = self._recording(function, tensors)
            if recording is None:
                return function(*tensors)
            results = recording.graph.replay(tensors)
            if not recording.guarded:
                return results
            return results[:-1] if results[-1] else function(*tensors)

    def _recording(self, function: Function, tensors: tuple[Tensor, ...]) -> _Recording | None:
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        if shapes not in self._recordings:
            calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
            if calls < self._calls_to_record or len(self._recordings) >= _MOST_SHAPES:
                return None
            self._recordings[shapes] = self._record(function, tensors)
        return self._recordings[shapes]

    def _record(self, function: Function, tensors: tuple[Tensor, ...]) -> _Recording | None:
        guarded = False

        def with_conditions(*inputs: Tensor) -> tuple[Tensor, ...]:
            nonlocal guarded
            with _set(_CONDITIONS, []):
                results = function(*inputs)
                valid = recording_holds()
            guarded = valid is not None
            return results if valid is None else (*results, valid)

        graph = self.recorder.graph_if_possible(with_conditions, tensors)
        return None if graph is None else _Recording(graph, guarded)


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


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
        return tuple(output.clone() for output in self._outputs)  # the next replay overwrites them


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> Iterator[None]:
    """A block whose kernels go into ``graph``; if it fails, everything is as before.

    Not ``torch.cuda.graph``, which first waits for the device and empties torch's caches: filling them again
    takes longer than the recording, and a service would stop for a quarter of a second.
    """
    failure: RuntimeError | None = None
    with (
        _RECORDING,
        _no_garbage_collection(),
        torch.cuda.device(device),
        torch.cuda.stream(_recording_stream(device)),
    ):
        # Other threads may allocate meanwhile: they prepare the next batches.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        except RuntimeError as error:  # the recording has to be ended properly first
            failure = error
        finally:
            graph.capture_end()
    if failure is not None:
        raise failure


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings: graphs share memory only if they were recorded in the same stream."""
    return torch.cuda.Stream(device)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Freeing another graph during a recording would spoil it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
