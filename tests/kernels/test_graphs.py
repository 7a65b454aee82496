"""Recorded functions: the same answers, the right moment, nothing without a GPU."""

import gc
import threading
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.kernels import graphs
from ramen.kernels.graphs import CALLS_TO_RECORD, Recorder
from ramen.methods._method import Method
from tests.fakes.traced_graphs import traced, traced_ramen
from tests.helpers.device_waits import no_waiting


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


class PlainGraph:
    """Calls the function that it was made of."""

    def __init__(self, function: graphs.Function) -> None:
        self.function = function

    def replay(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return self.function(*tensors)


class ScarceRecorder(Recorder):
    """Notes what it is asked for; so many graphs can be recorded, and then comes an error."""

    def __init__(self, room: int, error: type[Exception] = torch.OutOfMemoryError) -> None:
        super().__init__()
        self.room, self.error = room, error
        self.asked: list[int] = []  # the sizes

    def records_on(self, device: torch.device) -> bool:
        return True

    def graph(self, function: graphs.Function, tensors: tuple[Tensor, ...]) -> PlainGraph:
        self.asked.append(len(tensors[0]))
        if not self.room:
            raise self.error("no room")
        self.room -= 1
        return PlainGraph(function)


def scaled(x: Tensor, *, factor: float) -> tuple[Tensor, ...]:
    return (factor * x,)


def test_other_keyword_arguments_end_all_recordings() -> None:
    recorder = ScarceRecorder(room=9)
    recorded = recorder.record(scaled)
    for factor, size in [(2, 3)] * 4 + [(5, 3)] * 4 + [(5, 1)] * 2 + [(2, 3)] * 3 + [(5, 1)] * 2:
        (result,) = recorded(torch.ones(size), factor=factor)
        assert result.tolist() == [factor] * size
    # the calls of (5, 1) before and after (2, 3) do not add up
    assert recorder.asked == [3, 3, 3]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_where_no_graph_can_be_recorded_the_function_itself_is_called(error: type[Exception]) -> None:
    recorder = ScarceRecorder(room=1, error=error)
    recorded = recorder.record(scaled)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for factor in (2, 5):
            for _ in range(CALLS_TO_RECORD + 2):
                for size in (3, 4):
                    assert recorded(torch.ones(size), factor=factor)[0].tolist() == [factor] * size
    assert recorder.asked == [3, 4, 3, 4]  # once each, and again for another factor
    (warning,) = caught
    assert "no CUDA graph could be recorded" in str(warning.message)
    assert "no room" in str(warning.message)


# -- whole steps of Ramen -----------------------------------------------------------------------------


def stream(images: int, seed: int = 0) -> Tensor:
    return torch.randn(images, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def assert_same(a: ramen.Prediction, b: ramen.Prediction) -> None:
    assert torch.equal(a.logits, b.logits)
    assert torch.equal(a.zero_shot_logits, b.zero_shot_logits)
    assert torch.equal(a.fallback, b.fallback)
    assert (a.support is None) == (b.support is None)
    for name in vars(a.support) if a.support else ():
        assert torch.equal(getattr(a.support, name), getattr(b.support, name)), name


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"codec": "fp32", "balance": False},
        {"consistency": False},
        {"visibility": "causal"},
        {"visibility": "causal", "defaults": "steered"},
        {"visibility": "causal", "consistency": False, "codec": "fp32"},
        {"fifo": "float16"},  # only the passes are recorded
    ],
    ids=str,
)
def test_a_replayed_stream_is_answered_like_any_other(parameters: dict) -> None:
    """Over a memory that grows and wraps around, with unusable images among the others."""
    method, recorder = traced_ramen(capacity=12, topk=3, **parameters)
    plain = ramen.create("ramen", testing.small_classifier(), capacity=12, topk=3, **parameters)
    plain.memory.fixed_shapes = True
    images = stream(150)
    images[[20, 61, 62, 120], 0, 3, 3] = torch.nan
    for number, batch in enumerate(images.split(3)):
        tags = torch.arange(3) + number if number % 2 else None
        assert_same(method.predict(batch, tags=tags), plain.predict(batch, tags=tags))
    assert plain.images_refused == method.images_refused == 4
    assert_same(*(m.predict(batch, return_support=True) for m in (method, plain)))
    state, expected = method.state_dict(), plain.state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert sum(graph.replays for graph in recorder.graphs) > 30
    if parameters.get("fifo") != "float16":
        assert method._runner.records_steps(method)
        assert len(recorder.graphs) >= 3  # a new one for every size of the memory
    assert state["content.counts"].max() > (12 if parameters.get("fifo") != "float16" else 11)


def test_whatever_changes_between_two_steps_is_noticed() -> None:
    method, recorder = traced_ramen(capacity=2, topk=2)
    plain = ramen.create("ramen", testing.small_classifier(), capacity=2, topk=2)
    plain.memory.fixed_shapes = True
    both, images = (method, plain), iter(stream(400).split(2))

    def check(**options: object) -> None:
        """Until a recording has been replayed."""
        for _ in range(CALLS_TO_RECORD + 3):  # the memory may grow meanwhile
            batch = next(images)
            assert_same(*(m.predict(batch, **options) for m in both))
        assert recorder.graphs[-1].replays > 1

    method.warm_up(2)
    check()
    saved = [m.state_dict() for m in both]
    check(tags=torch.tensor([3, 4]))
    check(tags=torch.tensor([5, 6]), return_support=True)
    for name, value in [
        ("lr", 0.5),
        ("topk", 1),
        ("beta", 0.0),
        ("entropy_weight", False),
        ("consistency", False),
        ("seed", 7),
        ("visibility", "causal"),
    ]:
        for m in both:
            setattr(m, name, value)
        check(return_support=True)
    for m in both:
        m.seed = 0  # that of the saved state
    for m, state in zip(both, saved, strict=True):
        m.load_state_dict(state)
    check()
    for m in both:
        m.reset()
    check()


def test_sizes_and_support_have_recordings_beside_each_other() -> None:
    method, recorder = traced_ramen(capacity=2, topk=2)
    method.warm_up(1)
    for batch in stream(12).split(3):
        method.predict(batch)
        method.predict(batch[:1], return_support=True)
        method.predict(batch[:1])
    assert len(recorder.graphs) == 3
    assert [graph.replays for graph in recorder.graphs] == [1 + 4, 2, 2]


def test_after_warming_up_the_first_batch_is_replayed() -> None:
    method, recorder = traced_ramen(capacity=4, topk=2)
    fresh = ramen.create("ramen", testing.small_classifier(), capacity=4, topk=2)
    images = stream(12)
    images[3] = torch.nan  # in the spare row
    for m in (method, fresh):
        m.predict(images[:4])
    before = method.state_dict()
    method.warm_up(4, 1)
    after = method.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert method.memory.allocated_bytes() == method.memory_bytes()
    assert [graph.replays for graph in recorder.graphs] == [1, 1]
    for batch in (*images[4:].split(4), images[:1]):
        method.predict(batch)
        fresh.predict(batch)
    assert [graph.replays for graph in recorder.graphs] == [3, 2]
    kept, expected = method.state_dict(), fresh.state_dict()
    assert all(torch.equal(kept[name], expected[name]) for name in expected)


@pytest.mark.parametrize("visibility", ["batch", "causal"])
def test_a_step_that_fails_leaves_a_memory_to_go_on_with(
    visibility: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = ramen.create("ramen", testing.small_classifier(), capacity=30, topk=2, visibility=visibility)
    images = stream(200)
    for batch in images[:40].split(4):
        method.predict(batch)
    encode, calls = method.classifier.encode, []

    def failing(*arguments: Tensor, **options: object) -> Tensor:
        calls.append(1)
        if len(calls) % 2 == 0:  # after the batch was stored
            raise torch.OutOfMemoryError("no room")
        return encode(*arguments, **options)

    monkeypatch.setattr(method.classifier, "encode", failing)
    for batch in images[40:80].split(4):  # more than the pool has rows for
        with pytest.raises(torch.OutOfMemoryError):
            method.predict(batch)
    monkeypatch.undo()
    resumed = ramen.create("ramen", testing.small_classifier(), capacity=30, topk=2, visibility=visibility)
    resumed.load_state_dict(method.state_dict())
    for batch in images[80:].split(4):
        outs = [m.predict(batch, return_support=True) for m in (method, resumed)]
        assert torch.equal(outs[0].logits, outs[1].logits)
        for numbers, valid in zip(outs[0].support.numbers, outs[0].support.valid, strict=True):
            held = numbers[valid].tolist()
            assert len(set(held)) == len(held)  # no two entries share a number


# -- steps of other methods ---------------------------------------------------------------------------

RECORDED_METHODS = [
    ("clip", {}),
    ("ensemble", {}),
    ("entmin", {}),
    ("tent", {"lr": 1e-2}),
    ("sar", {"lr": 1e-2, "margin": 0.8}),
    ("sar", {"lr": 1e-2, "margin": 0.8, "reset_below": 0.4, "clear_average": True}),
    ("mint", {"prior": 20.0}),
    ("tda", {"positive_capacity": 2, "entropy_lower": 0.0, "entropy_upper": 1.0}),
    ("dmn", {"capacity": 2}),
]


@pytest.mark.parametrize("tower", ["vit", "resnet"])
@pytest.mark.parametrize(("name", "parameters"), RECORDED_METHODS, ids=str)
def test_a_replayed_method_answers_like_any_other(name: str, parameters: dict, tower: str) -> None:
    """With unusable images among the others, over a reset and a restored state."""
    method, recorder = traced(name, tower, **parameters)
    plain = ramen.create(name, testing.small_classifier(tower), **parameters)
    assert method._runner.records_steps(method)
    images = stream(60)
    images[[20, 43], 0, 3, 3] = torch.nan
    both = method, plain
    for batch in images.split(3):
        assert_same(*(m.predict(batch) for m in both))
    states = [m.state_dict() for m in both]
    for m in both:
        m.reset()
    assert_same(*(m.predict(images[:3]) for m in both))
    for m, state in zip(both, states, strict=True):
        m.load_state_dict(state)
    assert_same(*(m.predict(images[:3]) for m in both))
    after = [m.state_dict() for m in both]
    assert all(torch.equal(after[0][part], after[1][part]) for part in after[1])
    assert plain.images_refused == method.images_refused == 2
    (graph,) = recorder.graphs  # neither a reset nor a restored state moves a tensor
    assert graph.replays >= 18


@pytest.mark.parametrize("name", ["tent", "entmin", "sar", "mint"])
def test_a_batch_that_breaks_a_recordings_assumption_is_answered_without_it(name: str) -> None:
    """An image that overflows: its batch is repaired on the host, and leaves the same state."""
    parameters = {"tent": {"lr": 1e-2}, "sar": {"lr": 1e-2, "margin": 0.8}}.get(name, {})
    method, recorder = traced(name, **parameters)
    plain = ramen.create(name, testing.small_classifier(), **parameters)
    images = stream(45)
    images[31] = 1e38
    for batch in images.split(3):
        assert_same(*(m.predict(batch) for m in (method, plain)))
    assert plain.images_refused == method.images_refused == 1
    states = method.state_dict(), plain.state_dict()
    assert all(torch.equal(states[0][part], states[1][part]) for part in states[1])
    (graph,) = recorder.graphs
    assert graph.replays == 13  # that of the bad batch was discarded


@pytest.mark.parametrize("name", ["note", "rotta"])
def test_the_passes_of_a_method_with_a_host_side_memory_are_recorded(name: str) -> None:
    method, recorder = traced(name, memory=3)
    plain = ramen.create(name, testing.small_classifier(), memory=3)
    assert not method._runner.records_steps(method)
    for batch in stream(45).split(3):
        assert_same(*(m.predict(batch) for m in (method, plain)))
    states = method.state_dict(), plain.state_dict()
    assert all(torch.equal(states[0][part], states[1][part]) for part in states[1])
    assert len(recorder.graphs) == 2  # to predict and to learn
    assert sum(graph.replays for graph in recorder.graphs) > 20


@pytest.mark.parametrize(
    ("parameters", "graphs"),
    [
        ({"views_at_once": 4}, 1),  # parts of the views of one image
        ({"views_at_once": 12}, 2),  # of two images, and of one, the last of a batch
        ({"views_at_once": 12, "augmix": 3}, 2),
        ({"views": 1}, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["mta", "tps", "zero"])
def test_views_are_recorded_together_with_the_passes_over_them(
    name: str, parameters: dict, graphs: int
) -> None:
    given = {"views": 6, **parameters}
    method, recorder = traced(name, **given)
    plain = ramen.create(name, testing.small_classifier(), **given)
    for batch in stream(36).split(5):
        assert_same(*(m.predict(batch) for m in (method, plain)))
    assert len(recorder.graphs) == graphs
    chunk = max(1, given.get("views_at_once", 64) // given["views"])
    chunks = sum(-(-len(batch) // chunk) for batch in stream(36).split(5))
    # all but those that came before the recordings, two for each
    assert chunks - sum(graph.replays for graph in recorder.graphs) <= 2 * (graphs + 1)


def test_a_recorded_function_within_another_is_part_of_it() -> None:
    recorder = ScarceRecorder(room=9)
    inner = recorder.record(scaled)
    outer = recorder.record(lambda x: inner(x + 1, factor=2))
    for _ in range(5):
        assert outer(torch.ones(3))[0].tolist() == [4] * 3
    assert recorder.asked == [3]


def test_conditions_outside_a_recording_are_looked_at() -> None:
    assert graphs.holds(torch.tensor(True))
    assert not graphs.holds(torch.tensor(False))
    assert graphs.recording_holds() is None


def check_freed_at_once(make: Callable[[], object]) -> None:
    made = make()
    gone = weakref.ref(made)
    gc.disable()
    try:
        del made
        assert gone() is None
    finally:
        gc.enable()


def test_a_method_is_freed_without_waiting_for_the_garbage_collector() -> None:
    check_freed_at_once(lambda: ramen.create("ramen", testing.small_classifier()))


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


# -- on a GPU -----------------------------------------------------------------------------------------


def graphs_of(method: ramen.Method) -> dict:
    assert method._runner.records_steps(method)
    return dict(method._runner.recorded[False]._recordings)


@pytest.mark.gpu
@pytest.mark.parametrize("parameters", [{}, {"codec": "sign", "placement": "split"}], ids=str)
def test_after_warming_up_nothing_is_compiled_or_recorded(parameters: dict) -> None:
    method = ramen.create("ramen", testing.small_classifier(device="cuda"), **parameters)
    method.warm_up(4, 1)
    before = graphs_of(method)
    assert len(before) == 2
    assert None not in before.values()
    for size in (4, 1, 4):
        with no_waiting():
            method.predict(torch.randn(size, 3, 32, 32, device="cuda"))
    assert graphs_of(method) == before


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
def test_a_recording_that_does_not_fit_is_done_without() -> None:
    calls = []

    def greedy(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(1)
        if torch.cuda.is_current_stream_capturing():
            torch.empty(2**50, device="cuda")
        return (2 * x,)

    recorded = Recorder().record(greedy)
    inputs = [torch.full((3,), float(number), device="cuda") for number in range(6)]
    with pytest.warns(UserWarning, match="no CUDA graph could be recorded"):
        outputs = [recorded(x)[0] for x in inputs]
    assert all(torch.equal(y, 2 * x) for x, y in zip(inputs, outputs, strict=True))
    assert len(calls) == 8  # of them two recordings: the second one after torch has given its caches back


@pytest.mark.gpu
def test_a_recording_that_goes_wrong_leaves_everything_as_it_was() -> None:
    def waiting(x: Tensor) -> tuple[Tensor, ...]:
        return (x * float(x.sum()),)  # waits for the device, which no recording can

    stream, x = torch.cuda.current_stream(), torch.ones(3, device="cuda")
    recorded, fine = Recorder().record(waiting), Recorder().record(scaled)
    with pytest.warns(UserWarning, match="no CUDA graph could be recorded"):
        outputs = [recorded(x)[0].tolist() for _ in range(6)]
    assert outputs == [[3.0] * 3] * 6
    assert torch.cuda.current_stream() == stream
    assert [fine(x, factor=2.0)[0].tolist() for _ in range(6)] == [[2.0] * 3] * 6
    assert len(fine._recordings) == 1
    assert all(fine._recordings.values())


@pytest.mark.gpu
def test_other_threads_may_allocate_while_a_graph_is_recorded() -> None:
    done = threading.Event()

    def prepare_batches() -> None:
        while not done.is_set():
            torch.zeros(50_000_000, dtype=torch.uint8).pin_memory().to("cuda", non_blocking=True)
            torch.cuda.empty_cache()  # so that the next one is a new allocation

    thread = threading.Thread(target=prepare_batches)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(5):
                method = ramen.create("ramen", testing.small_classifier(device="cuda"), capacity=5, topk=2)
                method.warm_up(4)
    finally:
        done.set()
        thread.join()


@pytest.mark.gpu
def test_recordings_follow_each_other() -> None:
    """The last graph of a recorder goes, and with it the memory that they share; then come new ones."""
    recorded = Recorder().record(scaled)
    for factor in (2, 5, 2, 3):
        for number in range(CALLS_TO_RECORD + 2):
            x = torch.full((1000,), float(number), device="cuda")
            assert torch.equal(recorded(x, factor=factor)[0], factor * x)
        assert len(recorded._recordings) == 1


@pytest.mark.gpu
def test_a_recorded_method_is_freed_without_waiting_for_the_garbage_collector() -> None:
    def recorded() -> Method:
        method = ramen.create("ramen", testing.small_classifier(device="cuda"), capacity=4, topk=2)
        method.warm_up(2)
        return method

    check_freed_at_once(recorded)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 3, 12])
@pytest.mark.parametrize(
    ("dtype", "parameters"),
    [
        ("float32", {}),
        ("float16", {}),
        ("float32", {"codec": "sign"}),
        ("float32", {"visibility": "causal"}),
        ("float32", {"consistency": False}),
        ("float32", {"balance": False}),
        ("float32", {"codec": "sign", "placement": "split"}),
        ("float32", {"fifo": "float16"}),
        ("float32", {"placement": "cpu"}),
    ],
    ids=str,
)
def test_ramen_answers_alike_with_and_without_graphs(dtype: str, parameters: dict, batch: int) -> None:
    """Over a memory that grows and wraps around, and one that is restored and cleared in between."""
    answers, supports = [], []
    for choice in ("auto", False):
        clf = testing.small_classifier(dtype=dtype, device="cuda")
        clf.fused = choice  # the same passes, with and without graphs
        method = ramen.create("ramen", clf, capacity=8, topk=2, **parameters)
        images = stream(30 * batch if batch > 1 else 150).cuda()
        outs = [method.predict(part, return_support=True) for part in images.split(batch)]
        outs += [method.predict(part, tags=torch.arange(len(part))) for part in images.split(batch)]
        state = method.state_dict()
        method.reset()
        outs += [method.predict(part) for part in images[: 6 * batch].split(batch)]
        method.load_state_dict(state)
        outs += [method.predict(part) for part in images[: 6 * batch].split(batch)]
        answers.append(torch.cat([out.logits for out in outs]))
        supports.append([out.support.numbers[out.support.valid].unique() for out in outs if out.support])
    # a last bit may turn the sign of a vanishing sum, or a tie
    close = (answers[0] - answers[1]).abs().amax(1) < (1e-3 if dtype == "float32" else 0.5)
    assert close.float().mean() > 0.97
    same = [torch.equal(a, b) for a, b in zip(*supports, strict=True)]
    assert sum(same) >= 0.9 * len(same)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "parameters",
    [{}, {"visibility": "causal"}, {"codec": "sign"}],
    ids=str,
)
@pytest.mark.parametrize("support", [False, True])
def test_a_steady_stream_is_replayed_without_waiting(parameters: dict, support: bool) -> None:
    method = ramen.create("ramen", testing.small_classifier(device="cuda"), capacity=5, topk=2, **parameters)
    method.warm_up(1)
    tags = torch.arange(1, device="cuda")
    images = torch.randn(8, 1, 3, 32, 32, device="cuda")
    for batch in images:
        method.predict(batch, tags=tags, return_support=support)
    with no_waiting():
        out = method.predict(images[0], tags=tags, return_support=support)
    assert out.logits.isfinite().all()
    assert len(method._runner.recorded[support]._recordings) == 1
