"""Kernels against plain torch: on a GPU or, run as a script with ``TRITON_INTERPRET=1``, interpreted."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.kernels import rows as row_kernels
from ramen.kernels import sums as sum_kernels
from ramen.memory import codecs, fetch_ahead, row_sums, row_table
from ramen.memory.memory import Memory
from ramen.memory.row_sums import weighted_sums

# length of a gradient, its blocks: short, exactly whole units, uneven and padded, several programs wide
SHAPES = [(3, None), (64, [32, 32]), (300, [70, 1, 129, 100]), (4300, [2060, 40, 2200])]


def random_rows(
    codec: codecs.Codec, count: int, generator: torch.Generator, exact: bool
) -> tuple[Tensor, Tensor]:
    """Stored rows and scales; ``exact``: whole numbers and powers of two, which sum without error."""
    shape = (count, codec.scale_width) if codec.scale_width else (count,)
    if codec.dtype.is_floating_point:
        whole = torch.randint(-50, 50, (count, codec.width), generator=generator).to(codec.dtype)
        stored = whole if exact else torch.randn(whole.shape, generator=generator).to(codec.dtype)
    else:
        stored = torch.randint(0, 256, (count, codec.width), generator=generator).to(torch.uint8)
        stored = stored.view(codec.dtype)
    powers = 2.0 ** torch.randint(-3, 4, shape, generator=generator)
    scales = powers if exact else torch.rand(shape, generator=generator)
    return stored, scales.to(codec.scale_dtype)


def looped(codec: codecs.Codec, stored: Tensor, scales: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """The sums as they are defined, in fp64."""
    values = codec.decode(stored, scales).double()
    out = torch.zeros(len(rows), codec.size, dtype=torch.float64)
    for query in range(len(rows)):
        for row, weight in zip(rows[query].tolist(), weights[query].tolist(), strict=True):
            out[query] += weight * values[row]
    return out


def picks(
    queries: int, count: int, stored: int, generator: torch.Generator, exact: bool
) -> tuple[Tensor, Tensor]:
    rows = torch.randint(stored, (queries, count), generator=generator)
    weights = torch.randint(-4, 5, rows.shape, generator=generator).float()
    return rows, weights if exact else torch.rand(rows.shape, generator=generator)


def check_sums(name: str, shape: tuple, exact: bool, device: str, picked: int = 7) -> None:
    generator = torch.Generator().manual_seed(len(name) + shape[0])
    codec = codecs.create(name, *shape)
    stored, scales = random_rows(codec, 30, generator, exact)
    rows, weights = picks(3, picked, 30, generator, exact)
    arguments = [tensor.to(device) for tensor in (stored, scales, rows, weights)]
    ways = ["kernel", "gathered", *(["dense"] if device != "cpu" and "fp" in name else [])]
    results = [weighted_sums(codec, *arguments, way=way).cpu() for way in ways]
    expected = looped(codec, stored, scales, rows, weights)
    for result in results:
        assert result.dtype == torch.float32
        if exact:
            assert torch.equal(result.double(), expected)
        else:
            torch.testing.assert_close(result.double(), expected, rtol=0, atol=2e-6 * expected.abs().max())


def check_sums_from_host(name: str, shape: tuple, host: Tensor | None, device: str) -> None:
    """``host``: where rows may lie for the GPU, bytes; None when interpreted."""
    generator = torch.Generator().manual_seed(1)
    codec = codecs.create(name, *shape)
    stored, scales = random_rows(codec, 30, generator, exact=True)
    rows, weights = picks(3, 7, 30, generator, exact=True)
    if host is not None:
        room = host[: stored.numel() * stored.element_size()].view(stored.dtype).view(stored.shape)
        stored = room.copy_(stored)
    out = torch.full((3, codec.size), torch.nan, device=device)
    there = [tensor.to(device) for tensor in (scales, rows, weights)]
    folded = codec.fold(there[2], there[0], there[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sums, "_STAGING_BYTES", 21 * codec.width * codec.dtype.itemsize // 3)
        row_sums._sum_from_host(codec, stored, *there[:2], folded, out, None)
    assert torch.equal(out.cpu().double(), looped(codec, stored, scales, rows, weights))


def check_rows(dtype: torch.dtype, width: int, device: str) -> None:
    table = torch.zeros(70, width, dtype=dtype, device=device)
    values = torch.randint(-100, 100, (4, width)).to(dtype).to(device)
    rows = torch.tensor([40, 2, 69, 2], device=device)
    values[3] = values[1]
    row_kernels.write_rows(table, rows, values)
    expected = torch.zeros_like(table)
    expected[rows] = values
    assert torch.equal(table, expected)
    needed = torch.zeros(70, dtype=torch.int32, device=device)
    needed[rows] = 1
    place = needed.cumsum(0) - 1
    for cut in (slice(0, width), slice(width // 2, width)):
        target = torch.empty(3, width - cut.start, dtype=dtype, device=device)
        for copy in (row_kernels.copy_rows, row_kernels.copy_rows_sparingly):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    row_kernels, "_BACKGROUND_PROGRAMS", 2
                )  # each goes through the rows in several steps
                copy(table[:, cut], needed, place, target.fill_(7))
            assert torch.equal(target, expected[[2, 40, 69], cut])


@contextmanager
def as_if_split() -> Iterator[pytest.MonkeyPatch]:
    """Gradients go in and out of tables through kernels, as where a GPU has them in host memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_table.Column, "shared", property(lambda column: column.used_from is not None))
        patch.setattr(row_table, "shared_zeros", lambda shape, dtype, device: torch.zeros(shape, dtype=dtype))
        patch.setattr(torch.cuda, "synchronize", lambda device: None)
        patch.setattr(row_kernels, "_uses_triton", lambda device: True)
        patch.setattr(sum_kernels, "_uses_triton", lambda device: True)
        patch.setattr(row_sums, "best_way", lambda *_: "kernel")
        patch.setattr(row_sums, "_by_kernel", _from_host)
        patch.setattr(row_sums, "_STAGING_BYTES", 20 * 300)
        yield patch


def _from_host(
    codec: codecs.Codec, stored: Tensor, scales: Tensor, rows: Tensor, weights: Tensor, *ahead: object
) -> Tensor:
    """Interpreted, all lies on one device: send whole rows the way of those in host memory."""
    out = weights.new_full((len(rows), codec.size), torch.nan)
    row_sums._sum_from_host(codec, stored, scales, rows, weights, out, *ahead)
    return out


def random_batches(count: int, seed: int = 0) -> Iterator[list[Tensor]]:
    """Queues, embeddings, gradients and entropies for the memories below."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield [
            torch.randint(4, (9,), generator=generator),
            *(torch.randn(9, width, generator=generator) for width in (8, 300)),
            torch.rand(9, generator=generator),
        ]


def memory_of(name: str) -> Memory:
    return Memory(4, 5, 8, 300, codec=name, blocks=[70, 130, 100])


def check_memory(name: str) -> None:
    """A split memory, as on a GPU: rows go in and out through kernels. Interpreted only."""
    plain = memory_of(name)
    with as_if_split():
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


# -- fetched ahead, interpreted -----------------------------------------------------------------------


class WatchedRows:
    """Which rows kernels have written and copied of late; those of the copy in the background aside."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.written: set[int] = set()
        self.copied: list[set[int]] = []
        self._write, self._copy = row_kernels.write_rows, row_kernels.copy_rows
        patch.setattr(row_table, "write_rows", self.write)
        for module in (row_sums, fetch_ahead):
            patch.setattr(module, "copy_rows", self.copy)

    def write(self, target: Tensor, rows: Tensor, values: Tensor) -> None:
        self.written = set(rows.tolist())
        self._write(target, rows, values)

    def copy(self, source: Tensor, needed: Tensor, target_rows: Tensor, target: Tensor) -> None:
        self.copied.append(set(needed.nonzero()[:, 0].tolist()))
        self._copy(source, needed, target_rows, target)


def check_fetch_ahead(name: str, whole: bool) -> None:
    """What comes ahead, whole rows or a part of each, changes no sum and is not fetched again.

    The memory grows and wraps around, and not all that comes may be stored.
    """
    with as_if_split() as patch:
        memories = memory_of(name), memory_of(name)
        memories[0].fixed_shapes = memories[1].fixed_shapes = True
        memory, watched, saved = memories[1], WatchedRows(patch), 0
        width, itemsize = memory.codec.width, memory.codec.dtype.itemsize
        for number, batch in enumerate(random_batches(6)):
            queries, keep = batch[1][:4], torch.arange(9) % 4 != number % 4
            for each in memories:
                each.admit(9)
            room = len(memory._pool["gradients"]) * width * itemsize
            patch.setattr(fetch_ahead, "_MOST_BYTES", 2 * room if whole else room // 2)
            guessed = set(memory.select(queries, 3).rows.flatten().tolist())
            fetch = memory.fetch_ahead(3)
            with fetch(queries):
                staged = memory.stage(*batch, keep=keep)
            assert fetch.width == width if whole else 0 < fetch.width < width
            sums = []
            for each, ahead in zip(memories, (None, fetch), strict=True):
                watched.copied.clear()
                each.put(staged, ahead)
                selection = each.select(queries, 3)
                sums.append(each.aggregate(selection, torch.exp(-selection.distances), ahead=ahead))
            assert torch.equal(*sums)
            needed = set(selection.rows.flatten().tolist())
            afterwards, *of_other_columns = watched.copied
            assert afterwards == needed - (guessed - watched.written)
            assert all(rows == needed for rows in of_other_columns)
            assert bool(of_other_columns) != whole
            saved += len(needed) - len(afterwards)
        assert saved > 20


def check_overwritten_and_missing_rows() -> None:
    """Queries find one entry that replaced the one guessed, and one that was not there to be guessed."""
    with as_if_split():
        memory = Memory(2, 1, 2, 3, codec="fp32")
        memory.fixed_shapes = True
        north = torch.tensor([[0.0, 1.0]])
        numbers = torch.tensor([1.0, 2.0, 4.0])
        memory.insert(memory.stage(torch.tensor([0]), north, numbers[None], torch.zeros(1)))
        queues, both = torch.tensor([0, 1]), north.expand(2, -1)
        memory.admit(2)
        fetch = memory.fetch_ahead(1)
        with fetch(north):
            entries = memory.stage(queues, both, torch.stack([16 * numbers, 256 * numbers]), torch.zeros(2))
        assert torch.equal(fetch.table[fetch.places(torch.tensor([[1]]))], numbers[None, None])
        memory.put(entries, fetch)
        selection = memory.select(north, 1)
        for weights, factor in (([1.0, 0.0], 16), ([0.0, 1.0], 256), ([1.0, 1.0], 272)):
            sums = memory.aggregate(selection, torch.tensor(weights).view(1, 2, 1), ahead=fetch)
            assert torch.equal(sums, factor * numbers[None])


def check_room() -> None:
    """Nothing is written behind the table."""
    with as_if_split():
        memory = memory_of("sign")
        memory.fixed_shapes = True
        for batch in random_batches(4):
            memory.insert(memory.stage(*batch))
        fetch, queries = memory.fetch_ahead(1), batch[1]
        with fetch(queries[:1]):
            pass
        assert fetch.table.shape == (8, memory.codec.width)
        memory.aggregate(memory.select(queries[:1], 1), torch.ones(1, 4, 1), ahead=fetch)
        with pytest.raises(ValueError, match="rows must be 4 at most, for which there is room, got 8"):
            memory.aggregate(memory.select(queries[:2], 1), torch.ones(2, 4, 1), ahead=fetch)


def check_no_room() -> None:
    """Where nothing fits on the GPU, everything is fetched when it is needed."""
    with as_if_split() as patch:
        memory, empty = memory_of("sign"), torch.empty
        memory.fixed_shapes = True
        batches = list(random_batches(3))
        for batch in batches[:2]:
            memory.insert(memory.stage(*batch))

        def no_room(*shape: int, **options: object) -> Tensor:
            if shape[0] > 0:
                raise torch.OutOfMemoryError("no room")
            return empty(*shape, **options)

        queues, queries, *_ = batches[2]
        memory.admit(len(queues))
        fetch = memory.fetch_ahead(3)
        with patch.context() as full:
            full.setattr(fetch_ahead.torch, "empty", no_room)
            with fetch(queries):
                pass
        assert fetch.width == 0
        memory.put(memory.stage(*batches[2]), fetch)
        selection = memory.select(queries, 3)
        sums = [memory.aggregate(selection, selection.distances, ahead=ahead) for ahead in (fetch, None)]
        assert torch.equal(*sums)


def check_ramen(**parameters: object) -> None:
    """The method answers the same with what comes ahead, and makes use of it where it can."""
    with as_if_split() as patch:
        calls, start = [], fetch_ahead.FetchAhead._start
        patch.setattr(
            fetch_ahead.FetchAhead, "_start", lambda fetch, queries: (calls.append(1), start(fetch, queries))
        )
        methods = [ramen.create("ramen", testing.small_classifier(), **parameters) for _ in range(2)]
        for method, fetches_ahead in zip(methods, (True, False), strict=True):
            method.memory.fixed_shapes = True
            method.memory.fetches_ahead = fetches_ahead
        images = torch.randn(4, 6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        for batch in images:
            answers = [method.predict(batch).logits for method in methods]
            assert torch.equal(*answers)
        assert len(calls) == (len(images) if parameters.get("consistency", True) else 0)


def main() -> None:
    row_kernels._uses_triton = sum_kernels._uses_triton = lambda device: True
    for name in codecs.CODECS:
        for shape in SHAPES[:3]:
            check_sums(name, shape, True, "cpu")
        check_sums(name, SHAPES[2], False, "cpu")
        check_sums(name, SHAPES[2], True, "cpu", picked=75)  # shared out among several programs
        check_sums_from_host(name, SHAPES[2], None, "cpu")
    check_sums("sign", SHAPES[3], True, "cpu")
    for name in ("fp16", "sign"):
        check_memory(name)
    for name, whole in (("fp16", True), ("fp16", False), ("sign", True), ("int8", False)):
        check_fetch_ahead(name, whole)
    check_overwritten_and_missing_rows()
    check_room()
    check_no_room()
    for parameters in ({"codec": "sign"}, {"visibility": "causal"}, {"consistency": False}):
        check_ramen(capacity=2, topk=1, **parameters)
    for dtype, width in ((torch.uint8, 1300), (torch.int8, 7), (torch.float16, 66), (torch.float16, 33)):
        check_rows(dtype, width, "cpu")


if __name__ == "__main__":
    main()
