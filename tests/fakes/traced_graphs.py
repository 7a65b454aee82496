"""CUDA graphs without a GPU: a function is traced to operations on tensors, and all that is Python is frozen.

What a replay does with a number of the host, or with a tensor that has been replaced since, goes as wrong
here as it does on a GPU.
"""

from collections.abc import Callable

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import ramen
from ramen import testing
from ramen.kernels.graphs import Function, Recorder
from ramen.memory.lowest_entropy import LowestEntropyMemory
from ramen.memory.retrieval import Memory
from ramen.methods.ramen import Ramen


class TracedGraph:
    """The operations of one call."""

    def __init__(self, function: Function, tensors: tuple[Tensor, ...]) -> None:
        self._operations: Callable[..., tuple[Tensor, ...]] = make_fx(function)(*tensors)
        self.replays = 0

    def replay(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.replays += 1
        return self._operations(*tensors)


class TracingRecorder(Recorder):
    """Records on the CPU, and keeps the recordings."""

    def __init__(self) -> None:
        super().__init__()
        self.methods: list[ramen.Method] = []  # whose states recorded functions change in place
        self.graphs: list[TracedGraph] = []

    def records_on(self, device: object) -> bool:
        return True

    def graph(self, function: Function, tensors: tuple[Tensor, ...]) -> TracedGraph:
        places = [tensor for method in self.methods for tensor in kept_tensors(method)]
        before = [tensor.clone() for tensor in places]
        graph = TracedGraph(function, tensors)
        for tensor, content in zip(places, before, strict=True):
            tensor.copy_(content)  # tracing does the work, which recording does not
        self.graphs.append(graph)
        return graph


def kept_tensors(method: ramen.Method) -> list[Tensor]:
    """All tensors that a method keeps, at their addresses."""
    places = [declared.place for declared in method.state.tensors.values()]
    for memory in method.state.memories.values():
        if isinstance(memory, Memory):
            places += [*memory._table.tensors.values(), *memory._index.values()]
        elif isinstance(memory, LowestEntropyMemory):
            places += [memory._counts, *memory._tables.values()]
    return places


def traced(name: str, tower: str = "vit", **parameters: object) -> tuple[ramen.Method, TracingRecorder]:
    """A method as on a GPU: recorded."""
    classifier, recorder = testing.small_classifier(tower), TracingRecorder()
    classifier.recorder = lambda: recorder
    method = ramen.create(name, classifier, **parameters)
    recorder.methods.append(method)
    return method, recorder


def traced_ramen(**parameters: object) -> tuple[Ramen, TracingRecorder]:
    """Ramen as on a GPU: recorded, and with shapes that depend on the memory's size alone."""
    method, recorder = traced("ramen", **parameters)
    assert isinstance(method, Ramen)
    method.memory.fixed_shapes = True
    return method, recorder
