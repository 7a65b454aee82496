"""Codecs against their definitions, and sums of stored rows against loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramen.memory import codecs
from ramen.memory.codecs import CODECS, UNIT, Blocks
from ramen.memory.retrieval import weighted_sums
from tests.kernels.stored_rows import looped, picks, random_rows

BFLOAT16 = 2.0**-8  # spacing of its numbers, relative

pieces = st.lists(
    st.one_of(st.integers(1, 70), st.sampled_from([64, 768, 1100, 2048])), min_size=1, max_size=6
)


def random_gradients(count: int, size: int, seed: int, magnitude: float = 1.0) -> Tensor:
    """Rows and stretches of very different size, with some zeros and one row of zeros."""
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(count, size, generator=generator) * magnitude
    gradients *= 10 ** (4 * torch.rand(count, 1, generator=generator) - 2)
    gradients[torch.rand(count, size, generator=generator) < 0.1] = 0
    gradients[-1] = 0
    return gradients


def blockwise(gradients: Tensor, sizes: tuple[int, ...]) -> list[np.ndarray]:
    return [block.double().numpy() for block in gradients.split(sizes, dim=1)]


# -- blocks -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(pieces)
def test_blocks_follow_the_pieces(lengths: list[int]) -> None:
    blocks = Blocks(sum(lengths), lengths)
    assert sum(blocks.sizes) == sum(lengths)
    assert max(blocks.sizes) <= 1024
    ends = set(np.cumsum(blocks.sizes).tolist())
    assert set(np.cumsum(lengths).tolist()) <= ends
    assert blocks.units == sum(math.ceil(size / UNIT) for size in blocks.sizes)

    gradients = torch.arange(2 * sum(lengths)).view(2, -1) + 1
    wide = blocks.spread(gradients)
    assert wide.shape == (2, blocks.units, UNIT)
    assert torch.equal(blocks.flat(wide.flatten(1)), gradients)
    assert wide.sum() == gradients.sum()  # zeros in the padding
    tables = blocks.tables(torch.device("cpu"))
    for unit in range(blocks.units):  # a unit holds what its tables say, all of it of one block
        held = gradients[:, tables.start[unit] : tables.stop[unit]]
        assert torch.equal(wide[:, unit, : held.shape[1]], held)
        assert held.shape[1] >= 1
    of_units = wide.sum(2)
    sums = torch.stack([block.sum(1) for block in gradients.split(blocks.sizes, dim=1)], dim=1)
    assert torch.equal(blocks.members(of_units).sum(2), sums)


@pytest.mark.parametrize("lengths", [[3, 4], [10, 0], [12, -2], []])
def test_blocks_that_do_not_fit(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="blocks"):
        Blocks(10, lengths)


# -- encoding -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(pieces, st.sampled_from([1e-30, 1e-9, 1.0, 1e20]), st.integers(0, 10**6))
def test_packed_values_are_as_near_as_the_format_allows(
    lengths: list[int], magnitude: float, seed: int
) -> None:
    gradients = random_gradients(4, sum(lengths), seed, magnitude)
    codec = codecs.create("sign", sum(lengths), lengths)
    stored, scales = codec.encode(gradients)
    assert stored.shape == (4, codec.width)
    assert stored.dtype == codec.dtype
    assert scales.shape == (4, len(codec.blocks.sizes))
    assert scales.dtype == torch.bfloat16
    decoded = codec.decode(stored, scales)
    assert decoded.shape == gradients.shape
    sizes = codec.blocks.sizes
    for index, (true, kept) in enumerate(
        zip(blockwise(gradients, sizes), blockwise(decoded, sizes), strict=True)
    ):
        scale = scales[:, index].double().numpy()
        np.testing.assert_allclose(scale, np.abs(true).mean(1), rtol=BFLOAT16)
        np.testing.assert_array_equal(kept, np.where(true < 0, -1, 1) * scale[:, None])
    assert not decoded[-1].any()


@pytest.mark.parametrize("magnitude", [1e-12, 1e-3, 1.0, 1e9])
@pytest.mark.parametrize("name", ["fp32", "fp16"])
def test_floating_point_codecs_keep_signs_and_sizes(name: str, magnitude: float) -> None:
    gradients = random_gradients(5, 200, 0, magnitude)
    codec = codecs.create(name, 200)
    stored, scales = codec.encode(gradients)
    assert stored.dtype == codec.dtype
    decoded = codec.decode(stored, scales)
    torch.testing.assert_close(decoded, gradients, rtol=1e-3 if name == "fp16" else 0, atol=1e-5 * magnitude)
    assert torch.equal(decoded.sign(), gradients.sign())


def test_the_exact_codecs_come_first() -> None:
    gradients = random_gradients(6, 600, 3)
    errors, sizes = [], []
    for name in CODECS:
        codec = codecs.create(name, 600, [200, 400])
        errors.append((codec.decode(*codec.encode(gradients)) - gradients).norm().item())
        sizes.append(codec.width * codec.dtype.itemsize)
    assert errors == sorted(errors)
    assert sizes == sorted(sizes, reverse=True)


def test_hand_worked_codes() -> None:
    gradients = torch.tensor([[7.0, -3.2, 0.4, -0.6], [0.0, 0.0, 0.0, 0.0]])
    codec = codecs.create("sign", 4)
    stored, scales = codec.encode(gradients)
    assert scales.tolist() == [[2.796875], [0.0]]  # 2.8 as bfloat16
    assert stored.tolist() == [[0b1010, 0, 0, 0], [0, 0, 0, 0]]


def test_the_ends_of_the_range() -> None:
    """Nothing that is stored is ever non-finite; what fp32 holds only as a subnormal number is zero."""
    codec = codecs.create("sign", 40)
    tiny = 5e-39  # its scale is a number of bfloat16, but no normal one
    gradients = torch.tensor([[3e38], [tiny], [-3e38]]).expand(3, 40)
    stored, scales = codec.encode(gradients)
    decoded = codec.decode(stored, scales)
    assert scales.isfinite().all()
    assert decoded.isfinite().all()
    assert (decoded[0] > 1e38).all()
    assert (decoded[2] < -1e38).all()
    assert not decoded[1].any()


@pytest.mark.parametrize("name", CODECS)
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    gradients = random_gradients(9, 500, 5)
    codec = codecs.create(name, 500, [300, 200])
    stored, scales = codec.encode(gradients)
    for row in range(9):
        alone = codec.encode(gradients[row : row + 1])
        assert torch.equal(alone[0][0], stored[row])
        assert torch.equal(alone[1][0], scales[row])


# -- weighted sums ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    name=st.sampled_from(CODECS),
    queries=st.integers(1, 5),
    count=st.integers(1, 9),
    panel=st.sampled_from([1, 5000, 64 * 2**20]),
    exact=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_weighted_sums(lengths, name, queries, count, panel, exact, seed) -> None:
    """Whole numbers and powers of two give the sum without any error."""
    generator = torch.Generator().manual_seed(seed)
    codec = codecs.create(name, sum(lengths), lengths)
    stored, scales = random_rows(codec, 12, generator, exact)
    rows, weights = picks(queries, count, 12, generator, exact)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "_PANEL_BYTES", panel)
        result = weighted_sums(codec, stored, scales, rows, weights)
    expected = looped(codec, stored, scales, rows, weights)
    assert result.dtype == torch.float32
    if exact:
        assert torch.equal(result.double(), expected)
    else:
        largest = weights.abs().sum(1).max() * codec.decode(stored, scales).abs().max()  # before they cancel
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-6 * largest.item())


@pytest.mark.parametrize("name", CODECS)
def test_only_rows_in_use_are_read(name: str) -> None:
    codec = codecs.create(name, 100)
    stored, scales = codec.encode(torch.randn(10, 100))
    rows, weights = torch.tensor([[2, 7, 2]]), torch.rand(1, 3)
    expected = weighted_sums(codec, stored, scales, rows, weights)
    spoiled = scales.clone()
    spoiled[[0, 1, 3, 4, 5, 6, 8, 9]] = torch.nan
    assert torch.equal(weighted_sums(codec, stored, spoiled, rows, weights), expected)
