"""Kernels against plain torch: on a GPU or, run as a script with ``TRITON_INTERPRET=1``, interpreted."""

import pytest
import torch
from torch import Tensor

from ramen import aggregate, codecs, pool
from ramen.aggregate import weighted_sums
from ramen.kernels import rows as row_kernels
from ramen.memory import Memory

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
        patch.setattr(aggregate, "_STAGING_BYTES", 21 * codec.width * codec.dtype.itemsize // 3)
        aggregate._sum_from_host(codec, stored, *there[:2], folded, out)
    assert torch.equal(out.cpu().double(), looped(codec, stored, scales, rows, weights))


def check_rows(dtype: torch.dtype, width: int, device: str) -> None:
    table = torch.zeros(9, width, dtype=dtype, device=device)
    values = torch.randint(-100, 100, (4, width)).to(dtype).to(device)
    rows = torch.tensor([4, 2, 8, 2], device=device)
    values[3] = values[1]
    row_kernels.write_rows(table, rows, values)
    expected = torch.zeros_like(table)
    expected[rows] = values
    assert torch.equal(table, expected)
    needed = torch.zeros(9, dtype=torch.int32, device=device)
    needed[rows] = 1
    place = needed.cumsum(0) - 1
    for cut in (slice(0, width), slice(width // 2, width)):
        target = torch.full((3, width - cut.start), 7, dtype=dtype, device=device)
        row_kernels.copy_rows(table[:, cut], needed, place, target)
        assert torch.equal(target, expected[[2, 4, 8], cut])


def check_memory(name: str) -> None:
    """A split memory, as on a GPU: rows go in and out through kernels. Interpreted only."""
    plain = Memory(4, 5, 8, 300, codec=name, blocks=[70, 130, 100])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.Column, "shared", property(lambda column: column.width > 8))
        patch.setattr(pool, "shared_zeros", lambda shape, dtype, device: torch.zeros(shape, dtype=dtype))
        patch.setattr(torch.cuda, "synchronize", lambda device: None)
        patch.setattr(aggregate, "best_way", lambda *_: "kernel")
        patch.setattr(aggregate, "_sum_panel", _unless_from_host)
        patch.setattr(aggregate, "_STAGING_BYTES", 20 * 300)
        split = Memory(4, 5, 8, 300, codec=name, blocks=[70, 130, 100])
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            batch = [torch.randint(4, (9,), generator=generator)]
            batch += [torch.randn(9, width, generator=generator) for width in (8, 300)]
            batch += [torch.rand(9, generator=generator)]
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


_sum_panel = aggregate._sum_panel


def _unless_from_host(
    codec: codecs.Codec, stored: Tensor, scales: Tensor, places: Tensor, rows: Tensor, *rest: object
) -> None:
    """Interpreted, all lies on one device: send whole rows the way of those in host memory."""
    if places is rows:
        aggregate._sum_from_host(codec, stored, scales, rows, *rest[:2])
    else:
        _sum_panel(codec, stored, scales, places, rows, *rest)


def main() -> None:
    for name in codecs.CODECS:
        for shape in SHAPES[:3]:
            check_sums(name, shape, True, "cpu")
        check_sums(name, SHAPES[2], False, "cpu")
        check_sums(name, SHAPES[2], True, "cpu", picked=75)  # shared out among several programs
        check_sums_from_host(name, SHAPES[2], None, "cpu")
    check_sums("sign", SHAPES[3], True, "cpu")
    for name in ("fp16", "sign"):
        check_memory(name)
    for dtype, width in ((torch.uint8, 1300), (torch.int8, 7), (torch.float16, 66), (torch.float16, 33)):
        check_rows(dtype, width, "cpu")


if __name__ == "__main__":
    main()
