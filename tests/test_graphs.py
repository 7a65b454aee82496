"""Recorded functions: the same answers, the right moment, nothing without a GPU."""

import gc
import weakref

import pytest
import torch
from torch import Tensor

import ramen
from ramen import graphs, testing
from ramen.graphs import Recorder


class Doubling:
    """Counts how often it really runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        return (2 * x, x.sum())


def test_without_a_gpu_the_function_itself_is_called() -> None:
    function = Doubling()
    recorded = Recorder().record(function)
    for number in range(5):
        doubled, total = recorded(torch.full((3,), float(number)))
        assert doubled.tolist() == [2 * number] * 3
        assert total == 3 * number
    assert function.calls == 5


def test_a_method_is_freed_without_waiting_for_the_garbage_collector() -> None:
    method = ramen.create("ramen", testing.small_classifier())
    gone = weakref.ref(method)
    gc.disable()
    try:
        del method
        assert gone() is None
    finally:
        gc.enable()


def test_garbage_collection_is_as_it_was_after_a_recording() -> None:
    for before in (True, False):
        (gc.enable if before else gc.disable)()
        try:
            with graphs._no_garbage_collection():
                assert not gc.isenabled()
            assert gc.isenabled() == before
        finally:
            gc.enable()


@pytest.mark.parametrize("name", ["ramen", "tent", "rotta"])
def test_warming_up_leaves_no_trace(name: str) -> None:
    classifier = testing.small_classifier()
    warm, fresh = ramen.create(name, classifier), ramen.create(name, classifier)
    warm.warm_up(4, 1)
    assert warm.images_seen == 0
    for images in torch.randn(3, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0)):
        assert torch.equal(warm.predict(images).logits, fresh.predict(images).logits)
    with pytest.raises(ValueError, match="batch_sizes must be"):
        warm.warm_up(0)


@pytest.mark.gpu
def test_after_warming_up_nothing_is_compiled_or_recorded() -> None:
    method = ramen.create("ramen", testing.small_classifier(device="cuda"))
    method.warm_up(4)
    before = [dict(f._graphs) for f in (method._at_pretrained_weights, method._at_own_weights)]
    assert all(before)
    method.predict(torch.randn(4, 3, 32, 32, device="cuda"))
    assert before == [dict(f._graphs) for f in (method._at_pretrained_weights, method._at_own_weights)]


@pytest.mark.gpu
def test_a_shape_is_recorded_when_it_comes_the_third_time() -> None:
    function = Doubling()
    recorded = Recorder().record(function)
    kept = [recorded(torch.full((3,), float(n), device="cuda"))[0] for n in range(6)]
    assert function.calls == 3
    assert torch.stack(kept)[:, 0].tolist() == [0, 2, 4, 6, 8, 10]  # no later call wrote over them
    recorded(torch.ones(2, device="cuda"))
    assert function.calls == 4  # another shape


@pytest.mark.gpu
def test_a_recorder_that_is_off_records_nothing() -> None:
    function = Doubling()
    recorded = Recorder(enabled=False).record(function)
    for _ in range(5):
        recorded(torch.ones(3, device="cuda"))
    assert function.calls == 5


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_ramen_answers_alike_with_and_without_graphs(dtype: str) -> None:
    images = torch.randn(8, 12, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    answers = []
    for choice in ("auto", False):
        clf = testing.small_classifier(dtype=dtype, device="cuda")
        clf.compile = choice  # the same passes, with and without graphs
        method = ramen.create("ramen", clf, capacity=8, topk=2)
        answers.append(torch.cat([method.predict(batch).logits for batch in images]))
    torch.testing.assert_close(*answers, rtol=0, atol=1e-4 if dtype == "float32" else 0.5)
