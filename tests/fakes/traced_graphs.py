"""CUDA graphs without a GPU: a function is traced to operations on tensors, and all that is Python is frozen.

What a replay does with a number of the host, or with a tensor that has been replaced since, goes as wrong
here as it does on a GPU.
"""

from collections.abc import Callable

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import ramen
from ramen import testing
from ramen.kernels.cuda_graphs import Function, Recorder
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
        self.memory: Memory | None = None  # what recorded functions change in place
        self.graphs: list[TracedGraph] = []

    def records_on(self, device: object) -> bool:
        return True

    def graph(self, function: Function, tensors: tuple[Tensor, ...]) -> TracedGraph:
        places = [*self.memory._table._tensors.values(), *self.memory._index.values()]
        before = [tensor.clone() for tensor in places]
        graph = TracedGraph(function, tensors)
        for tensor, content in zip(places, before, strict=True):
            tensor.copy_(content)  # tracing does the work, which recording does not
        self.graphs.append(graph)
        return graph


def traced_ramen(**parameters: object) -> tuple[Ramen, TracingRecorder]:
    """Ramen as on a GPU: recorded, and with shapes that depend on the memory's size alone."""
    classifier, recorder = testing.small_classifier(), TracingRecorder()
    classifier.recorder = lambda: recorder
    method = ramen.create("ramen", classifier, **parameters)
    recorder.memory = method.memory
    method.memory.fixed_shapes = True
    return method, recorder
