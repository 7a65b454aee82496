"""Scores of pairs: uniform, independent, and decided by the numbers alone."""

import pytest
import torch

from ramen.utils.numerics import pair_scores, row_keys


def test_pair_scores_are_uniform_and_independent() -> None:
    scores = pair_scores(0, torch.arange(300), torch.arange(500))
    assert scores.shape == (300, 500)
    assert scores.min() >= 0
    assert scores.max() < 1
    assert len(scores.unique()) == 150_000
    counts = torch.histc(scores.float(), bins=50, min=0, max=1)
    assert ((counts - 3000) / 3000**0.5).abs().max() < 4.5
    for other in (scores.roll(1, 0), scores.roll(1, 1), pair_scores(1, torch.arange(300), torch.arange(500))):
        assert torch.corrcoef(torch.stack([scores.flatten(), other.flatten()]))[0, 1].abs() < 0.01


def test_pair_scores_depend_on_the_numbers_alone() -> None:
    queries, entries = torch.arange(20), torch.arange(12).view(3, 4)
    whole = pair_scores(7, queries, entries)
    assert whole.shape == (20, 3, 4)
    assert torch.equal(pair_scores(7, queries[5:6], entries)[0], whole[5])
    assert torch.equal(pair_scores(7, queries, entries[1:2])[:, 0], whole[:, 1])


def splitmix64(state: int) -> int:
    """The published generator's output for a state, in Python's whole numbers."""
    z = state % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_pair_scores_are_those_of_splitmix64(device: str) -> None:
    """The first 53 bits of the output; the same on every device."""
    golden = 0x9E3779B97F4A7C15
    queries, entries = [0, 1, 77, 2**40], [0, 5, 2**50]
    expected = [
        [
            (splitmix64(splitmix64(query + (9 + 1) * golden) + entry * golden) >> 11) / 2**53
            for entry in entries
        ]
        for query in queries
    ]
    scores = pair_scores(9, *(torch.tensor(numbers, device=device) for numbers in (queries, entries)))
    assert scores.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_keys_of_rows_depend_on_their_content_alone(dtype: torch.dtype) -> None:
    rows = torch.randn(400, 3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    keys = row_keys(rows)
    assert keys.dtype == torch.int64
    assert len(keys.unique()) == 400
    assert torch.equal(row_keys(rows.flip(0)), keys.flip(0))
    assert torch.equal(row_keys(rows[7:8]), keys[7:8])
    exchanged = rows[:, :, [1, 0, 2, 3, 4]]
    assert not (row_keys(exchanged) == keys).any()


def test_keys_of_rows_do_not_know_the_sign_of_zero() -> None:
    zeros = torch.zeros(2, 4)
    zeros[1] *= -1
    keys = row_keys(zeros)
    assert keys[0] == keys[1]


def test_keys_of_rows_give_draws_that_look_independent() -> None:
    """Also for rows that differ in one bit of one number."""
    rows = torch.ones(300, 6)
    rows[:, 2].view(torch.int32).add_(torch.arange(300, dtype=torch.int32))
    scores = pair_scores(0, row_keys(rows), torch.arange(50))
    assert len(scores.unique()) == 15_000
    counts = torch.histc(scores.float(), bins=20, min=0, max=1)
    assert ((counts - 750) / 750**0.5).abs().max() < 4.5
    for other in (scores.roll(1, 0), scores.roll(1, 1)):
        assert torch.corrcoef(torch.stack([scores.flatten(), other.flatten()]))[0, 1].abs() < 0.03
