"""The vectorised memory against plain lists and double loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramen.kernels import nearest
from ramen.memory import plan as memory_plan
from ramen.memory import queues as memory_module
from ramen.memory.codecs import CODECS, Codec
from ramen.memory.plan import MemoryPlan
from ramen.memory.queues import Staged
from ramen.memory.retrieval import Memory, Selection
from tests.oracles.naive_memory import Entry, NaiveMemory, aggregate, weight

WIDTH, SIZE, BETA = 4, 3, 2.0
BLOCKS = (2, 1)


def random_batch(generator: torch.Generator, batch: int, queues: int) -> dict[str, Tensor]:
    embeddings = torch.nn.functional.normalize(torch.randn(batch, WIDTH, generator=generator), dim=-1)
    return {
        "queues": torch.randint(queues, (batch,), generator=generator),
        "embeddings": embeddings,
        "gradients": torch.randn(batch, SIZE, generator=generator),
        "entropies": torch.rand(batch, generator=generator),
        "tags": torch.randint(100, (batch,), generator=generator),
        "keep": torch.rand(batch, generator=generator) > 0.2,
    }


def entry_of(batch: dict[str, Tensor], index: int, number: int, codec: Codec) -> Entry:
    """An entry of the oracle, which sees what the codec leaves of a gradient."""
    gradients = codec.decode(*codec.encode(batch["gradients"]))
    return Entry(
        number,
        batch["embeddings"][index].to(codec.embedding_dtype).double().numpy(),
        gradients[index].double().numpy(),
        float(batch["entropies"][index]),
        int(batch["tags"][index]),
    )


def alphas(selection: Selection) -> Tensor:
    return torch.exp(-selection.entropies - BETA * selection.distances)


def compare(
    selection: Selection, query: int, chosen: list[tuple[int, Entry, float]], gradient: Tensor
) -> None:
    """One query's retrieval and aggregation, against the oracle's."""
    valid = selection.valid[query]
    queues = torch.arange(len(valid))[:, None].expand_as(valid)
    got = zip(
        queues[valid].tolist(),
        selection.numbers[query][valid].tolist(),
        selection.tags[query][valid].tolist(),
        strict=True,
    )
    assert sorted(got) == sorted((queue, entry.number, entry.tag) for queue, entry, _ in chosen)
    by_number = {entry.number: (entry, distance) for _, entry, distance in chosen}
    weights = alphas(selection)[query][valid]
    for number, value in zip(selection.numbers[query][valid].tolist(), weights.tolist(), strict=True):
        assert value == pytest.approx(weight(*by_number[number], BETA), rel=1e-5)
    np.testing.assert_allclose(gradient[query].numpy(), aggregate(chosen, BETA, SIZE), rtol=1e-4, atol=1e-5)


shapes = st.fixed_dictionaries(
    {
        "queues": st.integers(1, 6),
        "capacity": st.integers(1, 7),
        "batches": st.lists(st.integers(1, 15), min_size=1, max_size=5),
        "seed": st.integers(0, 10**6),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    shapes,
    st.integers(1, 7),
    st.sampled_from(["exact", "float16"]),
    st.sampled_from([0, 2000, 65_500]),
    st.sampled_from(CODECS),
    st.booleans(),
)
def test_batch_visibility_equals_the_double_loop(
    shape: dict, topk: int, fifo: str, start: int, codec: str, fixed_shapes: bool
) -> None:
    generator = torch.Generator().manual_seed(shape["seed"])
    sizes = shape["queues"], shape["capacity"], WIDTH, SIZE
    vectorised = Memory(MemoryPlan(*sizes, codec=codec, blocks=BLOCKS, fifo=fifo))
    naive = NaiveMemory(shape["queues"], shape["capacity"], fifo)
    vectorised.seen = start
    vectorised.fixed_shapes = fixed_shapes
    for size in shape["batches"]:
        batch = random_batch(generator, size, shape["queues"])
        first = vectorised.seen
        vectorised.insert(vectorised.stage(**batch))
        for i in range(size):
            if batch["keep"][i]:
                naive.insert_one(int(batch["queues"][i]), entry_of(batch, i, first + i, vectorised.codec))
        selection = vectorised.select(batch["embeddings"], topk)
        gradient = vectorised.aggregate(selection, alphas(selection))
        for i in range(size):
            chosen = naive.select(batch["embeddings"][i].double().numpy(), topk)
            compare(selection, i, chosen, gradient)
    assert len(vectorised) == sum(map(len, naive.queues))


@settings(max_examples=150, deadline=None)
@given(shapes, st.integers(1, 7), st.sampled_from(CODECS), st.booleans())
def test_causal_visibility_equals_one_by_one(shape: dict, topk: int, codec: str, fixed_shapes: bool) -> None:
    generator = torch.Generator().manual_seed(shape["seed"])
    vectorised = Memory(
        MemoryPlan(shape["queues"], shape["capacity"], WIDTH, SIZE, codec=codec, blocks=BLOCKS)
    )
    vectorised.fixed_shapes = fixed_shapes
    naive = NaiveMemory(shape["queues"], shape["capacity"])
    for size in shape["batches"]:
        batch = random_batch(generator, size, shape["queues"])
        first = vectorised.seen
        staged = vectorised.stage(**batch)
        selection = vectorised.select(batch["embeddings"], topk, staged=staged)
        gradient = vectorised.aggregate(selection, alphas(selection), staged=staged)
        vectorised.insert(staged)
        for i in range(size):
            if batch["keep"][i]:
                naive.insert_one(int(batch["queues"][i]), entry_of(batch, i, first + i, vectorised.codec))
            chosen = naive.select(batch["embeddings"][i].double().numpy(), topk)
            compare(selection, i, chosen, gradient)


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(1, 7))
def test_random_selection_draws_visible_entries_without_replacement(shape: dict, topk: int) -> None:
    generator = torch.Generator().manual_seed(shape["seed"])
    memory = Memory(MemoryPlan(shape["queues"], shape["capacity"], WIDTH, SIZE))
    for size in shape["batches"]:
        batch = random_batch(generator, size, shape["queues"])
        memory.insert(memory.stage(**batch))
    everything = memory.select(batch["embeddings"], shape["capacity"])
    drawn = memory.select(batch["embeddings"], topk, draw=(1, torch.arange(size)))
    sizes = everything.valid.sum(2)
    assert torch.equal(drawn.valid.sum(2), sizes.clamp_max(topk))
    for query in range(size):
        for queue in range(shape["queues"]):
            numbers = drawn.numbers[query, queue][drawn.valid[query, queue]].tolist()
            held = everything.numbers[query, queue][everything.valid[query, queue]].tolist()
            assert len(set(numbers)) == len(numbers)
            assert set(numbers) <= set(held)


def test_random_selection_is_uniform() -> None:
    memory = Memory(MemoryPlan(1, 10, WIDTH, SIZE))
    batch = random_batch(torch.Generator().manual_seed(0), 10, 1)
    memory.insert(memory.stage(**{**batch, "keep": torch.ones(10, dtype=torch.bool)}))
    queries = batch["embeddings"][:1].expand(4000, -1)
    drawn = memory.select(queries, 3, draw=(0, torch.arange(4000)))
    frequency = drawn.numbers.flatten().bincount(minlength=10) / len(queries)
    assert (frequency - 0.3).abs().max() < 0.03


def test_hand_worked_ring() -> None:
    """Capacity 2; the batch a a b a, then b a: a keeps its last two, b its two."""
    memory = Memory(MemoryPlan(2, 2, 1, 1, codec="fp32"))

    def insert(*queues: int) -> None:
        n = len(queues)
        memory.insert(memory.stage(torch.tensor(queues), torch.ones(n, 1), torch.ones(n, 1), torch.zeros(n)))

    def content() -> list[list[int]]:
        selection = memory.select(torch.ones(1, 1), 2)
        return [sorted(n[v].tolist()) for n, v in zip(selection.numbers[0], selection.valid[0], strict=True)]

    assert content() == [[], []]
    insert(0, 0, 1, 0)
    assert content() == [[1, 3], [2]]
    insert(1, 0)
    assert content() == [[3, 5], [2, 4]]
    insert(1, 1, 1, 1, 1)
    assert content() == [[3, 5], [9, 10]]
    assert len(memory) == 4


def test_the_published_order_freezes_full_queues() -> None:
    memory = Memory(MemoryPlan(1, 3, WIDTH, SIZE, fifo="float16"))
    memory.seen = 65_518
    batch = random_batch(torch.Generator().manual_seed(0), 8, 1)
    memory.insert(memory.stage(**{**batch, "keep": torch.ones(8, dtype=torch.bool)}))
    held = memory.select(batch["embeddings"][:1], 3).numbers.flatten().tolist()
    # 65,518 and 65,519 round to 65,504 and give way; three infinite ages then stay for ever
    assert sorted(held) == [65_520, 65_521, 65_522]


# -- what is not stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["embeddings", "gradients", "entropies"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_rows_never_enter(field: str, value: float) -> None:
    memory = Memory(MemoryPlan(2, 4, WIDTH, SIZE))
    batch = random_batch(torch.Generator().manual_seed(0), 6, 2)
    batch["keep"][:] = True
    batch[field] = batch[field].clone()
    batch[field][3] = value
    staged = memory.stage(**batch)
    assert staged.keep.tolist() == [True, True, True, False, True, True]
    memory.insert(staged)
    selection = memory.select(batch["embeddings"][:3], 4)
    assert 3 not in selection.numbers[selection.valid].tolist()
    assert memory.aggregate(selection, alphas(selection)).isfinite().all()
    assert all(t.isfinite().all() for t in memory.state().values() if t.is_floating_point())


def test_an_empty_memory_gives_no_support() -> None:
    memory = Memory(MemoryPlan(3, 2, WIDTH, SIZE))
    selection = memory.select(torch.ones(2, WIDTH), 2)
    assert not selection.valid.any()
    assert torch.equal(memory.aggregate(selection, alphas(selection)), torch.zeros(2, SIZE))


def test_huge_and_tiny_gradients_survive_fp16() -> None:
    """Entries of very different size keep their signs and sizes: each has its own scale."""
    memory = Memory(MemoryPlan(2, 1, 1, 2, codec="fp16"))
    gradients = torch.tensor([[3e6, -1e6], [2e-9, -1e-9]])
    memory.insert(memory.stage(torch.tensor([0, 1]), torch.ones(2, 1), gradients, torch.zeros(2)))
    selection = memory.select(torch.ones(1, 1), 1)
    one_by_one = [memory.aggregate(selection, w.view(1, 2, 1)) for w in torch.eye(2)]
    torch.testing.assert_close(torch.cat(one_by_one), gradients, rtol=1e-3, atol=0)


def test_fp16_is_close_to_fp32() -> None:
    results = []
    for codec in ("fp32", "fp16"):
        memory = Memory(MemoryPlan(3, 8, WIDTH, SIZE, codec=codec))
        batch = random_batch(torch.Generator().manual_seed(4), 20, 3)
        memory.insert(memory.stage(**batch))
        selection = memory.select(batch["embeddings"], 8)
        results.append(memory.aggregate(selection, alphas(selection)))
    torch.testing.assert_close(*results, rtol=0, atol=5e-3)


def test_distances_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(MemoryPlan(3, 8, WIDTH, SIZE))
    batch = random_batch(torch.Generator().manual_seed(4), 20, 3)
    memory.insert(memory.stage(**batch))
    at_once = memory.select(batch["embeddings"], 4)
    monkeypatch.setattr(nearest, "_DISTANCE_BYTES", 1)
    assert torch.equal(memory.select(batch["embeddings"], 4).distances, at_once.distances)


# -- size ---------------------------------------------------------------------------------------------


def fill(memory: Memory, images: int, queues: int, batch: int = 50, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(images // batch):
        memory.insert(memory.stage(**random_batch(generator, batch, queues)))


def test_allocation_grows_with_use_up_to_the_capacity() -> None:
    memory = Memory(MemoryPlan(1000, 75, 32, 500))
    full = sum(memory.max_bytes().values())
    index_only = memory.allocated_bytes()
    assert index_only < 0.02 * full
    memory.insert(
        memory.stage(torch.zeros(1, dtype=torch.int64), torch.ones(1, 32), torch.ones(1, 500), torch.ones(1))
    )
    assert memory.allocated_bytes() < 0.03 * full
    sizes = []
    for step in range(10):
        memory.insert(
            memory.stage(
                torch.arange(10_000) % 1000,
                torch.ones(10_000, 32),
                torch.ones(10_000, 500),
                torch.ones(10_000),
            )
        )
        sizes.append(memory.allocated_bytes())
        assert memory.allocated_bytes() >= min(1, (step + 1) * 10_000 / 75_000) * 0.95 * full
    assert sizes == sorted(sizes)
    assert sizes[-1] == full
    assert len(memory) == 75_000


def test_one_popular_class_takes_only_its_own_room() -> None:
    memory = Memory(MemoryPlan(1000, 75, 32, 500))
    for _ in range(20):
        memory.insert(
            memory.stage(torch.full((50,), 3), torch.ones(50, 32), torch.ones(50, 500), torch.ones(50))
        )
    assert len(memory) == 75
    assert memory.allocated_bytes() < 0.03 * sum(memory.max_bytes().values())


def cifar_100_c(codec: str) -> MemoryPlan:
    return MemoryPlan(100, 750, 512, 39_936, codec, [768] * 52)


def test_one_bit_for_cifar_100_c() -> None:
    sizes = {codec: sum(cifar_100_c(codec).max_bytes().values()) / 2**20 for codec in CODECS}
    assert sizes["sign"] <= 450
    assert sizes["sign"] > 75_000 * (39_936 / 8 + 2 * 512) / 2**20  # bits and embeddings are counted
    assert sizes == pytest.approx({"fp32": 11575.8, "fp16": 5789.0, "sign": 439.8}, abs=0.1)


@pytest.mark.parametrize("fifo", ["exact", "float16"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_full_memory_takes_what_was_said(codec: str, fifo: str) -> None:
    memory = Memory(MemoryPlan(3, 5, WIDTH, 100, codec=codec, blocks=[60, 40], fifo=fifo))
    planned = memory.max_bytes()
    for _ in range(3):
        queues = torch.arange(30) % 3
        rows = torch.ones(30, WIDTH), torch.randn(30, 100), torch.zeros(30)
        memory.insert(memory.stage(queues, *rows))
    assert len(memory) == 15
    assert memory.allocated_bytes() == sum(planned.values())
    kept = sum(tensor.numel() * tensor.element_size() for tensor in memory.state().values())
    assert kept == sum(planned.values()) + 8  # and how many images were seen
    assert repr(memory).startswith(f"Memory(3 queues of 5, codec '{codec}', at most ")


def test_auto_takes_the_most_exact_codec_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    auto = cifar_100_c("auto")
    for codec in CODECS[1:]:  # fp32 only on request
        needed = sum(cifar_100_c(codec).max_bytes().values())
        assert auto.within(needed) == cifar_100_c(codec)
        assert auto.within(needed + 2**20) == cifar_100_c(codec)
        monkeypatch.setattr(memory_plan, "free_bytes", lambda device, n=needed: 2 * n)
        assert auto.within(None) == cifar_100_c(codec)
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: None)
    assert auto.within(None).codec == "fp16"


@given(budget=st.integers(2**20, 2**33), least=st.integers(1, 900))
def test_a_capacity_is_lowered_as_little_as_needed(budget: int, least: int) -> None:
    for codec in ("auto", "fp16"):
        plan = cifar_100_c(codec)
        try:
            fitting = plan.within(budget, least)
        except MemoryError:
            smallest = replace(plan, codec="sign" if codec == "auto" else codec, capacity=min(least, 750))
            assert sum(smallest.max_bytes().values()) > budget
            continue
        assert sum(fitting.max_bytes().values()) <= budget
        if fitting.capacity < 750:
            assert fitting.capacity >= least
            assert fitting.codec == ("sign" if codec == "auto" else codec)
            larger = replace(fitting, capacity=fitting.capacity + 1)
            assert sum(larger.max_bytes().values()) > budget


def test_a_budget_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    what = "100 queues of capacity=750 with codec 'sign' take up to 439.79 MiB"
    with pytest.raises(
        MemoryError, match=f"^even the smallest codec is too large: {what}, but memory_budget is"
    ):
        cifar_100_c("auto").within(439 * 2**20)
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: 400 * 2**20)
    with pytest.raises(MemoryError, match=f"{what} on cpu, but the limit is 200.00 MiB, half"):
        cifar_100_c("auto").within(None)
    with pytest.raises(
        MemoryError, match=r"codec 'fp16' take .* smaller codec \('sign' takes 439.79 MiB, 'auto'"
    ):
        cifar_100_c("fp16").within(10**9)
    assert cifar_100_c("fp16").within(7 * 10**9) == cifar_100_c("fp16")
    assert cifar_100_c("fp32").within(None) == cifar_100_c("fp32")


def test_auto_looks_at_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients elsewhere, there is where their size counts."""
    split = {"device": torch.device("meta"), "gradient_device": torch.device("cpu")}
    plan = MemoryPlan(100, 750, 512, 39_936, "auto", [768] * 52, **split)
    monkeypatch.setattr(
        memory_plan, "free_bytes", lambda device: 2**30 if device.type == "cpu" else 200 * 2**20
    )
    assert plan.within(None).codec == "sign"
    assert set(plan.within(None).max_bytes()) == {torch.device("meta"), torch.device("cpu")}
    monkeypatch.setattr(
        memory_plan, "free_bytes", lambda device: 2**40 if device.type == "cpu" else 100 * 2**20
    )
    with pytest.raises(MemoryError, match="on meta, but the limit is"):
        plan.within(None)


def test_a_memory_that_cannot_fit_is_refused() -> None:
    message = r"10 queues of capacity=1000000 can grow to .* GiB on cpu, where .* are free: lower capacity"
    with pytest.raises(MemoryError, match=message):
        Memory(MemoryPlan(10, 10**6, 512, 10**6))


def test_the_check_counts_all_of_it_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = sum(Memory(MemoryPlan(3, 5, WIDTH, SIZE)).max_bytes().values())
    monkeypatch.setattr(memory_module, "free_bytes", lambda device: needed)
    Memory(MemoryPlan(3, 5, WIDTH, SIZE))
    monkeypatch.setattr(memory_module, "free_bytes", lambda device: needed - 1)
    with pytest.raises(MemoryError, match="3 queues of capacity=5"):
        Memory(MemoryPlan(3, 5, WIDTH, SIZE))
    monkeypatch.setattr(memory_module, "free_bytes", lambda device: None)
    Memory(MemoryPlan(3, 5, WIDTH, SIZE))


def test_growing_goes_through_host_memory_when_both_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(MemoryPlan(2, 64, WIDTH, SIZE))
    fill(memory, 50, 2)
    before = memory.select(torch.ones(1, WIDTH), 64)
    empty, failures = torch.empty, []

    def scarce(*args: object, **kwargs: object) -> Tensor:
        if not failures:
            failures.append(1)
            raise torch.OutOfMemoryError("no room")
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", scarce)
    memory._table.reserve(129)
    assert failures
    after = memory.select(torch.ones(1, WIDTH), 64)
    assert all(torch.equal(getattr(before, f), getattr(after, f)) for f in vars(before))


def test_growing_that_fails_halfway_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, other = Memory(MemoryPlan(2, 64, WIDTH, SIZE)), Memory(MemoryPlan(2, 64, WIDTH, SIZE))
    fill(memory, 50, 2)
    fill(other, 50, 2)
    empty, calls = torch.empty, []

    def scarce(*args: object, **kwargs: object) -> Tensor:
        calls.append(1)
        if len(calls) > 1:  # the first column has grown, the second cannot
            raise torch.OutOfMemoryError("no room")
        return empty(*args, **kwargs)

    before = memory.generation
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", scarce)
        with pytest.raises(torch.OutOfMemoryError):
            fill(memory, 50, 2, seed=1)
    assert memory.generation > before
    for each in (memory, other):
        fill(each, 100, 2, seed=1)
    expected = other.state()
    assert all(torch.equal(value, expected[name]) for name, value in memory.state().items())


def test_a_generation_is_as_long_as_the_tensors_stay() -> None:
    memory = Memory(MemoryPlan(2, 200, WIDTH, SIZE))

    def tensors() -> list[int]:
        held = [*memory._table.tensors.values(), *memory._index.values()]
        return [tensor.data_ptr() for tensor in held]

    seen = {}
    generator = torch.Generator().manual_seed(0)
    for step in range(30):
        memory.insert(memory.stage(**random_batch(generator, 20, 2)))
        assert seen.setdefault(memory.generation, tensors()) == tensors()
        if step == 12:
            memory.restore(memory.state())
    assert len(seen) > 4
    generation = memory.generation
    memory.clear()
    assert memory.generation > generation


def test_with_fixed_shapes_a_pool_has_few_sizes() -> None:
    """Each costs a recording."""
    memory = Memory(MemoryPlan(1000, 75, 32, 10))
    memory.fixed_shapes = True
    sizes = []
    for start in range(0, 90_000, 500):
        one = torch.ones(500, 1)
        queues = torch.arange(start, start + 500) % 1000
        memory.insert(memory.stage(queues, one.expand(-1, 32), one.expand(-1, 10), one[:, 0]))
        sizes.append(memory._table.allocated)
    assert sorted(set(sizes)) == [4688, 9376, 18752, 37504, 75008]


# -- state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fifo", "codec"), [("float16", "fp16"), *(("exact", codec) for codec in CODECS)])
def test_state_round_trip(fifo: str, codec: str) -> None:
    memory, restored = (Memory(MemoryPlan(5, 9, WIDTH, SIZE, fifo=fifo, codec=codec)) for _ in range(2))
    fill(memory, 100, 5)
    restored.restore(memory.state())
    for other in (memory, restored):
        fill(other, 50, 5, batch=25, seed=1)
    a, b = memory.state(), restored.state()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("codec", ["fp16", "sign"])
def test_a_state_that_does_not_fit_changes_nothing(codec: str) -> None:
    memory, other = (Memory(MemoryPlan(5, n, WIDTH, SIZE, codec=codec)) for n in (9, 8))
    fill(memory, 50, 5)
    fill(other, 50, 5)
    before = memory.state()
    table, counts, gradients = before["table"], before["counts"], before["gradients"]
    damages = [
        ("table", {"table": other.state()["table"]}),
        ("table", {"table": table.clamp_min(10**6)}),
        ("table", {"table": torch.where(table == 2, 1, table)}),  # one row twice
        ("counts", {"counts": counts.clamp_max(1)}),
        ("counts", {"counts": -counts}),
        ("embeddings|rows", {"used": before["used"] - 1}),
        ("seen", {"seen": torch.tensor([1, 2])}),
        ("tags", {"tags": 3}),
        ("gradients", {"gradients": gradients[:-1]}),
        ("gradients", {"gradients": gradients.view(torch.int8)}),
        ("scales", {"scales": before["scales"][None]}),
        ("scales", {"scales": before["scales"] / 0}),
        *((name, {name: before[name].clone().fill_(torch.nan)}) for name in ("embeddings", "entropies")),
    ]
    for named, change in damages:
        with pytest.raises(ValueError, match=named):
            memory.restore({**before, **change})
    with pytest.raises(ValueError, match="table"):
        memory.restore({name: tensor for name, tensor in before.items() if name != "table"})
    assert all(torch.equal(before[name], value) for name, value in memory.state().items())


def test_gradients_that_fp32_cannot_hold_never_enter() -> None:
    memory = Memory(MemoryPlan(2, 4, WIDTH, SIZE))
    batch = random_batch(torch.Generator().manual_seed(0), 3, 2)
    gradients = batch["gradients"].double()
    gradients[1, 0] = 1e300
    staged = memory.stage(**{**batch, "gradients": gradients, "keep": torch.ones(3, dtype=torch.bool)})
    assert staged.keep.tolist() == [True, False, True]


def test_staging_does_not_alias_its_input() -> None:
    memory = Memory(MemoryPlan(2, 4, WIDTH, SIZE, codec="fp32"))
    batch = random_batch(torch.Generator().manual_seed(0), 3, 2)
    batch["keep"][:] = True
    memory.insert(memory.stage(**batch))
    before = memory.state()
    for tensor in batch.values():
        tensor.zero_()
    assert all(torch.equal(before[name], value) for name, value in memory.state().items())


def test_staged_is_in_stored_form() -> None:
    memory = Memory(MemoryPlan(2, 4, WIDTH, SIZE))
    staged = memory.stage(**random_batch(torch.Generator().manual_seed(0), 3, 2))
    assert isinstance(staged, Staged)
    assert staged.gradients.dtype == staged.embeddings.dtype == torch.float16
    assert staged.numbers.tolist() == [0, 1, 2]
    batch = random_batch(torch.Generator().manual_seed(0), 3, 2)
    assert memory.stage(**batch, numbers=torch.tensor([7, 8, 9])).numbers.tolist() == [7, 8, 9]


@pytest.mark.parametrize("codec", ["fp16", "sign"])
def test_patches_of_all_changed_rows_are_the_state(codec):
    """Whatever entered, and however often: the old state, with the patches on top, is the new one."""
    generator = torch.Generator().manual_seed(0)
    memory = Memory(MemoryPlan(4, 3, 8, 40, codec=codec, blocks=[40]))
    known = {name: t.clone() for name, t in memory.state().items()}
    for batch in (1, 5, 2, 20, 3, 7):
        since = memory.seen
        queues = torch.randint(0, 4, (batch,), generator=generator)
        keep = torch.rand(batch, generator=generator) < 0.8
        embeddings = torch.randn(batch, 8, generator=generator)
        gradients = torch.randn(batch, 40, generator=generator)
        entropies = torch.rand(batch, generator=generator)
        memory.insert(memory.stage(queues, embeddings, gradients, entropies, keep=keep))
        for patch in memory.patches(memory.changed_rows(since)):
            for name, values in patch.values.items():
                tensor = torch.full((patch.length, *values.shape[1:]), patch.fill, dtype=values.dtype)
                tensor[: len(known[name])] = known[name]
                tensor[patch.places] = values
                known[name] = tensor
        known |= memory.unpatched()
        now = memory.state()
        assert known.keys() == now.keys()
        assert [name for name in now if not torch.equal(known[name], now[name])] == []


def test_what_is_left_of_a_damaged_state_is_a_sound_one():
    """Any entries may be missing: the others stay, in their queues and in their order."""
    generator = torch.Generator().manual_seed(0)
    memory = Memory(MemoryPlan(4, 5, 8, 40, codec="sign", blocks=[40]))
    for batch in (7, 9, 20):
        queues = torch.randint(0, 4, (batch,), generator=generator)
        rows = [torch.randn(batch, n, generator=generator) for n in (8, 40)]
        memory.insert(memory.stage(queues, *rows, torch.rand(batch, generator=generator)))
    state = memory.state()
    for lost in (0, 1, 8, 20):
        damaged = {name: tensor.clone() for name, tensor in state.items()}
        held = (damaged["table"][:-1] >= 0).nonzero()[:, 0]
        missing = held[torch.randperm(len(held), generator=generator)[:lost]]
        expected = _entries({**damaged, "table": damaged["table"].index_fill(0, missing, -1)})
        damaged["table"][missing] = -1
        other = Memory(memory.plan)
        other.restore(other.salvage(damaged))
        found = _entries(other.state())
        assert sorted(found) == sorted(expected)
        assert [n for q, n, _ in found if q == 2] == sorted(n for q, n, _ in expected if q == 2)
        # The next entry of a full queue replaces its oldest one.
        oldest = min((n for q, n, _ in found if q == 0), default=None)
        full = sum(q == 0 for q, _, _ in found) == 5
        one = torch.zeros(1, dtype=torch.int64)
        other.insert(other.stage(one, torch.randn(1, 8), torch.randn(1, 40), torch.rand(1)))
        assert (oldest in {n for q, n, _ in _entries(other.state()) if q == 0}) == (not full and bool(found))


def _entries(state):
    """Queue, number and gradient of each entry, by slot."""
    table = state["table"][:-1].tolist()
    return [
        (slot // 5, int(state["numbers"][row]), bytes(state["gradients"][row].tolist()))
        for slot, row in enumerate(table)
        if row >= 0
    ]
