"""What comes over the bus during the backward pass; sums and their rows are in ``tests/kernels``."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.kernels.cuda_graphs import Recorder
from ramen.memory import codecs, fetch_ahead
from ramen.memory.fetch_ahead import SideStream
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory
from ramen.methods._steps import sample_gradients
from tests.fakes.traced_graphs import traced_ramen
from tests.helpers.device_waits import no_waiting
from tests.kernels.split_memory import memory_of, random_batches, split_on_the_cpu

# -- when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_the_block_is_around_the_backward_pass(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier, events = testing.small_classifier(), []
    encode, gradient = classifier.encode, classifier.gradient

    def watched(*arguments: Tensor) -> Tensor:
        events.append("backward")
        if fails:
            raise torch.OutOfMemoryError("no room")
        return gradient(*arguments)

    @contextmanager
    def meanwhile(embeddings: Tensor) -> Iterator[None]:
        assert not embeddings.requires_grad
        events.append(embeddings)
        try:
            yield
        finally:
            events.append("end")

    monkeypatch.setattr(classifier, "encode", lambda *given: (events.append("forward"), encode(*given))[1])
    monkeypatch.setattr(classifier, "gradient", watched)
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    if fails:
        with pytest.raises(torch.OutOfMemoryError):
            sample_gradients(classifier, images, meanwhile=meanwhile)
    else:
        embeddings = sample_gradients(classifier, images, meanwhile=meanwhile)[0]
        assert torch.equal(events[1], embeddings)
    assert [events[0], *events[2:]] == ["forward", "backward", "end"]


def test_only_gradients_in_host_memory_that_a_gpu_reads_come_ahead() -> None:
    def memory(fixed_shapes: bool = True, **options: object) -> Memory:
        memory = Memory(MemoryPlan(4, 5, 8, 300, **options))
        memory.fixed_shapes = fixed_shapes
        return memory

    assert memory().fetch_ahead(4, 3) is None
    with split_on_the_cpu():
        shared = memory()
        assert shared.fetch_ahead(4, 3) is not None
        shared.fetches_ahead = False
        assert shared.fetch_ahead(4, 3) is None
        assert memory(fifo="float16").fetch_ahead(4, 3) is None  # passes are recorded by themselves
        assert memory(fixed_shapes=False).fetch_ahead(4, 3) is None


def test_a_recording_ends_with_the_switch() -> None:
    method, recorder = traced_ramen(capacity=2, topk=1)
    method.warm_up(2)
    images = torch.randn(4, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    method.predict(images[0])
    assert len(recorder.graphs) == 1
    method.memory.fetches_ahead = False
    for batch in images:
        method.predict(batch)
    assert len(recorder.graphs) == 2


# -- on a GPU -----------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_side_stream_waits_and_is_waited_for() -> None:
    side, long = SideStream(torch.device("cuda")), 100_000_000
    source, early, late = torch.zeros(3, 1000, device="cuda")
    with no_waiting():
        torch.cuda._sleep(long)
        source.fill_(1)
        with side.fork():
            early.copy_(source)
            torch.cuda._sleep(long)
            late.copy_(source)
        side.join()
        results = early.clone(), late.clone()
    assert results[0].eq(1).all()
    assert results[1].eq(1).all()


def split_memory(name: str) -> Memory:
    options = {"codec": name, "blocks": [70, 130, 100], "device": "cuda", "gradient_device": "cpu"}
    return Memory(MemoryPlan(4, 5, 8, 300, **options))


class Step:
    """One step with a memory, at every stage of which somebody is late."""

    def __init__(self, memory: Memory, late: bool) -> None:
        self.memory, self.late = memory, late

    def __call__(self, *batch: Tensor, causal: bool, generation: int) -> tuple[Tensor, ...]:
        memory, queries = self.memory, batch[1]
        ahead = memory.fetch_ahead(len(queries), 3)
        assert (ahead is not None) == memory.fetches_ahead
        if ahead is None:
            staged = memory.stage(*batch)
        else:
            with ahead(queries):
                staged = memory.stage(*batch)
        own = staged if causal else None
        if self.late:
            torch.cuda._sleep(3_000_000)  # what the next step fetches is not yet there
        if not causal:
            memory.put(staged)
        selection = memory.select(queries, 3, staged=own)
        sums = memory.aggregate(selection, torch.exp(-selection.distances), staged=own)
        if causal:
            memory.put(staged)
        return (sums,)


@pytest.fixture
def late_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies in the background that have not begun when the main stream is done with everything else."""
    copy = fetch_ahead.copy_rows_sparingly

    def late(*arguments: Tensor) -> None:
        torch.cuda._sleep(3_000_000)
        copy(*arguments)

    monkeypatch.setattr(fetch_ahead, "copy_rows_sparingly", late)


@pytest.mark.gpu
@pytest.mark.usefixtures("late_copies")
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", codecs.CODECS)
def test_sums_are_the_same(
    name: str, whole: bool, causal: bool, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, over a memory that grows and wraps around."""
    if not whole:
        row = memory_of(name).codec.width * memory_of(name).codec.dtype.itemsize
        monkeypatch.setattr(fetch_ahead, "_MOST_BYTES", 24 * row // 2)
    plain, ahead = split_memory(name), split_memory(name)
    plain.fetches_ahead = False
    recorder = Recorder(enabled=recorded)
    steps = [recorder.record(Step(memory, late=memory is ahead)) for memory in (plain, ahead)]
    for number, batch in enumerate(random_batches(14)):
        batch = [tensor.cuda() for tensor in batch]
        start = torch.tensor(9 * number, device="cuda")
        batch += [torch.arange(9, device="cuda") % 5, torch.arange(9, device="cuda") != number % 9]
        batch += [start + torch.arange(9, device="cuda")]
        sums = []
        for memory, step in zip((plain, ahead), steps, strict=True):
            memory.admit(9)
            sums += step(*batch, causal=causal, generation=memory.generation)
        assert torch.equal(*sums)
        assert sums[0].isfinite().all()
    states = plain.state(), ahead.state()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    if recorded:
        assert all(step._recordings and None not in step._recordings.values() for step in steps)


@pytest.mark.gpu
@pytest.mark.parametrize("choice", ["auto", False])
@pytest.mark.parametrize("parameters", [{}, {"visibility": "causal"}, {"codec": "fp16"}], ids=str)
def test_ramen_answers_the_same(parameters: dict, choice: str | bool) -> None:
    answers = []
    for fetches_ahead in (True, False):
        classifier = testing.small_classifier(device="cuda")
        classifier.fused = choice
        settings = {"capacity": 5, "topk": 2, "codec": "sign", "placement": "split"} | parameters
        method = ramen.create("ramen", classifier, **settings)
        method.memory.fetches_ahead = fetches_ahead
        images = torch.randn(10, 20, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
        outs = [method.predict(batch) for batch in images.flatten(0, 1)[:60].split(3)]
        outs += [method.predict(batch) for batch in images]  # the pool is as large as it will ever be
        with no_waiting():
            outs.append(method.predict(images[0]))
        state = method.state_dict()
        method.reset()
        outs += [method.predict(batch) for batch in images[:4]]
        method.load_state_dict(state)
        outs += [method.predict(batch) for batch in images[:6]]
        answers.append(torch.cat([out.logits for out in outs]))
        if choice == "auto":
            recordings = method._recorded_steps.recorded[False]._recordings
            assert recordings
            assert None not in recordings.values()
    # a last bit may turn the sign of a vanishing sum
    assert ((answers[0] - answers[1]).abs().amax(1) < 1e-3).float().mean() > 0.97


@pytest.mark.gpu
def test_a_recording_that_fails_while_rows_come_ends_in_order() -> None:
    memory = split_memory("sign")
    for batch in random_batches(3):
        memory.insert(memory.stage(*(tensor.cuda() for tensor in batch)))

    def failing(queries: Tensor) -> tuple[Tensor, ...]:
        with memory.fetch_ahead(len(queries), 3)(queries):
            if torch.cuda.is_current_stream_capturing():
                torch.empty(2**50, device="cuda")
        return (2 * queries,)

    recorded, queries = Recorder().record(failing), torch.randn(9, 8, device="cuda")
    with pytest.warns(UserWarning, match=r"no CUDA graph could be recorded.*[Oo]ut of memory"):
        outputs = [recorded(queries)[0] for _ in range(5)]
    assert all(torch.equal(output, 2 * queries) for output in outputs)
