"""Memories whose gradients are in host memory, interpreted: the same answers, and what is fetched ahead."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.kernels import rows as row_kernels
from ramen.memory import fetch_ahead, row_sums, storage
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory
from tests.kernels.split_memory import memory_of, random_batches, split_on_the_cpu

pytestmark = pytest.mark.interpreted


@pytest.mark.parametrize("name", ["fp16", "sign"])
def test_a_split_memory_equals_a_plain_one(name: str) -> None:
    plain = memory_of(name)
    with split_on_the_cpu():
        split = memory_of(name)
        for batch in random_batches(3):
            sums = []
            for memory in (plain, split):
                staged = memory.stage(*batch)
                selection = memory.select(batch[1], 3, staged=staged)
                weights = torch.exp(-selection.distances)
                sums.append(memory.aggregate(selection, weights, staged=staged))
                memory.insert(staged)
            torch.testing.assert_close(*sums, rtol=0, atol=1e-5)
        first, second = plain.state(), split.state()
        assert all(torch.equal(first[key], second[key]) for key in first)
        split.restore(first)


# -- fetched ahead ------------------------------------------------------------------------------------


class WatchedRows:
    """Which rows kernels have written and copied since it was cleared; not those copied in the background."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.written: set[int] = set()
        self.copied: list[set[int]] = []
        self._write, self._copy = row_kernels.write_rows, row_kernels.copy_rows
        patch.setattr(storage, "write_rows", self.write)
        for module in (row_sums, fetch_ahead):
            patch.setattr(module, "copy_rows", self.copy)

    def write(self, target: Tensor, rows: Tensor, values: Tensor) -> None:
        self.written = set(rows.tolist())
        self._write(target, rows, values)

    def copy(self, source: Tensor, needed: Tensor, target_rows: Tensor, target: Tensor) -> None:
        self.copied.append(set(needed.nonzero()[:, 0].tolist()))
        self._copy(source, needed, target_rows, target)


@pytest.mark.parametrize(
    ("name", "whole"), [("fp16", True), ("fp16", False), ("sign", True), ("int8", False)]
)
def test_what_is_fetched_ahead_changes_no_sum(name: str, whole: bool) -> None:
    """Whole rows, or a part of each, and nothing is fetched again.

    The memory grows and wraps around, and not every entry of a batch may be stored.
    """
    with split_on_the_cpu() as patch:
        memories = memory_of(name), memory_of(name)
        memories[0].fixed_shapes = memories[1].fixed_shapes = True
        memory, watched, saved = memories[1], WatchedRows(patch), 0
        width, itemsize = memory.codec.width, memory.codec.dtype.itemsize
        for number, batch in enumerate(random_batches(6)):
            queries, keep = batch[1][:4], torch.arange(9) % 4 != number % 4
            for each in memories:
                each.admit(9)
            room = len(memory._table.tensors["gradients"]) * width * itemsize
            patch.setattr(fetch_ahead, "_MOST_BYTES", 2 * room if whole else room // 2)
            guessed = set(memory.select(queries, 3).rows.flatten().tolist())
            fetch = memory.fetch_ahead(len(queries), 3)
            with fetch(queries):
                staged = memory.stage(*batch, keep=keep)
            assert fetch.width == width if whole else 0 < fetch.width < width
            sums = []
            for each in memories:
                watched.copied.clear()
                each.put(staged)
                selection = each.select(queries, 3)
                sums.append(each.aggregate(selection, torch.exp(-selection.distances)))
            assert torch.equal(*sums)
            needed = set(selection.rows.flatten().tolist())
            afterwards, *of_other_columns = watched.copied
            assert afterwards == needed - (guessed - watched.written)
            assert all(rows == needed for rows in of_other_columns)
            assert bool(of_other_columns) != whole
            saved += len(needed) - len(afterwards)
        assert saved > 20


def test_overwritten_and_missing_rows() -> None:
    """Queries find one entry that replaced the one guessed, and one that did not exist at that time."""
    with split_on_the_cpu():
        memory = Memory(MemoryPlan(2, 1, 2, 3, codec="fp32"))
        memory.fixed_shapes = True
        north = torch.tensor([[0.0, 1.0]])
        numbers = torch.tensor([1.0, 2.0, 4.0])
        memory.insert(memory.stage(torch.tensor([0]), north, numbers[None], torch.zeros(1)))
        queues, both = torch.tensor([0, 1]), north.expand(2, -1)
        memory.admit(2)
        fetch = memory.fetch_ahead(1, 1)
        with fetch(north):
            entries = memory.stage(queues, both, torch.stack([16 * numbers, 256 * numbers]), torch.zeros(2))
        assert torch.equal(fetch.table[fetch.places(torch.tensor([[1]]))], numbers[None, None])
        memory.put(entries)
        selection = memory.select(north, 1)
        for weights, factor in (([1.0, 0.0], 16), ([0.0, 1.0], 256), ([1.0, 1.0], 272)):
            memory._ahead = fetch  # which an aggregation uses up
            sums = memory.aggregate(selection, torch.tensor(weights).view(1, 2, 1))
            assert torch.equal(sums, factor * numbers[None])


def test_nothing_is_written_past_the_end_of_the_table() -> None:
    with split_on_the_cpu():
        memory = memory_of("sign")
        memory.fixed_shapes = True
        for batch in random_batches(4):
            memory.insert(memory.stage(*batch))
        fetch, queries = memory.fetch_ahead(1, 1), batch[1]
        with fetch(queries[:1]):
            pass
        assert fetch.table.shape == (8, memory.codec.width)
        memory.aggregate(memory.select(queries[:1], 1), torch.ones(1, 4, 1))
        memory._ahead = fetch
        with pytest.raises(ValueError, match="rows must be at most 4, got 8"):
            memory.aggregate(memory.select(queries[:2], 1), torch.ones(2, 4, 1))


def test_without_memory_on_the_gpu_everything_is_fetched_when_needed() -> None:
    with split_on_the_cpu() as patch:
        memory, empty = memory_of("sign"), torch.empty
        memory.fixed_shapes = True
        batches = list(random_batches(3))
        for batch in batches[:2]:
            memory.insert(memory.stage(*batch))

        def no_room(*shape: int, **options: object) -> Tensor:
            if len(shape) == 2 and shape[0] > 0:
                raise torch.OutOfMemoryError("no room")
            return empty(*shape, **options)

        queues, queries, *_ = batches[2]
        memory.admit(len(queues))
        with patch.context() as full:
            full.setattr(fetch_ahead.torch, "empty", no_room)
            fetch = memory.fetch_ahead(len(queries), 3)
        with fetch(queries):
            pass
        assert fetch.width == 0
        memory.put(memory.stage(*batches[2]))
        selection = memory.select(queries, 3)
        sums = [memory.aggregate(selection, selection.distances) for _ in range(2)]  # the second without it
        assert torch.equal(*sums)


@pytest.mark.parametrize(
    "parameters", [{"codec": "sign"}, {"visibility": "causal"}, {"consistency": False}], ids=str
)
def test_ramen_answers_the_same(parameters: dict[str, object]) -> None:
    """And it fetches ahead whenever it can."""
    with split_on_the_cpu() as patch:
        calls, start = [], fetch_ahead.FetchAhead._start
        patch.setattr(
            fetch_ahead.FetchAhead, "_start", lambda fetch, queries: (calls.append(1), start(fetch, queries))
        )
        methods = [
            ramen.create("ramen", testing.small_classifier(), capacity=2, topk=1, **parameters)
            for _ in range(2)
        ]
        for method, fetches_ahead in zip(methods, (True, False), strict=True):
            method.memory.fixed_shapes = True
            method.memory.fetches_ahead = fetches_ahead
        images = torch.randn(4, 6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        for batch in images:
            answers = [method.predict(batch).logits for method in methods]
            assert torch.equal(*answers)
        assert len(calls) == (len(images) if parameters.get("consistency", True) else 0)
