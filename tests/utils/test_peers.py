"""What processes tell each other: values, uneven rows, sums, errors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ramen.utils import distributed as module
from ramen.utils.distributed import GroupError, Peers
from tests.helpers.process_team import ProcessTeam

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def rows(rank: int, count: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    draws = torch.Generator().manual_seed(100 * rank + count)
    return (10 * torch.rand(count, *shape, generator=draws)).to(dtype)


def gathered(group: ProcessGroup, sizes: list[int], shape: tuple[int, ...]) -> list[Tensor]:
    peers = Peers(group)
    own = [rows(peers.rank, sizes[peers.rank], dtype, shape) for dtype in DTYPES]
    return [peers.gather(one, sizes, "testing") for one in own]


@pytest.mark.parametrize("sizes", [[2, 0, 3], [0, 0, 1], [4, 4, 4], [0, 0, 0]])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_uneven_rows_arrive_bit_for_bit(team: ProcessTeam, sizes: list[int], shape: tuple[int, ...]) -> None:
    for found in team.run(gathered, sizes, shape, processes=3):
        for dtype, one in zip(DTYPES, found, strict=True):
            expected = torch.cat([rows(rank, sizes[rank], dtype, shape) for rank in range(3)])
            assert one.dtype == dtype
            assert torch.equal(one, expected)


def gathered_columns(group: ProcessGroup, sizes: list[int]) -> dict[str, Tensor]:
    peers = Peers(group)
    count = sizes[peers.rank]
    peers.begin(count)
    columns = {
        "a": rows(peers.rank, count, torch.float16, (5,)),
        "b": rows(peers.rank, count, torch.int64, ()),
    }
    return peers.gather_columns(columns, "testing")


def test_columns_travel_together(team: ProcessTeam) -> None:
    sizes = [2, 0, 3]
    for found in team.run(gathered_columns, sizes, processes=3):
        for name, dtype, shape in (("a", torch.float16, (5,)), ("b", torch.int64, ())):
            assert torch.equal(found[name], torch.cat([rows(r, sizes[r], dtype, shape) for r in range(3)]))


def agreed(group: ProcessGroup) -> tuple[Any, ...]:
    peers = Peers(group)
    peers.begin(peers.rank)
    total = peers.total(torch.tensor([0.1, 1e8]) * (peers.rank + 1), "testing")
    words = peers.values({"rank": peers.rank, "text": "ä" * peers.rank}, "testing")
    return peers.numbers(peers.rank**2, "testing"), words, total, peers.sizes, peers.own


def test_numbers_values_and_sums(team: ProcessTeam) -> None:
    results = team.run(agreed, processes=3)
    for rank, (numbers, words, total, sizes, own) in enumerate(results):
        assert numbers == [0, 1, 4]
        assert words == [{"rank": one, "text": "ä" * one} for one in range(3)]
        assert torch.equal(total, results[0][2])
        torch.testing.assert_close(total, torch.tensor([0.6, 6e8]))
        assert sizes == [0, 1, 2]
        assert own == (slice(0, 0), slice(0, 1), slice(1, 3))[rank]


def failing(group: ProcessGroup) -> str:
    peers = Peers(group)

    def work() -> int:
        if peers.rank == 1:
            raise OSError("the disk is full")
        return peers.rank

    try:
        peers.attempt(work, "saving")
    except (OSError, GroupError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_an_error_in_one_process_is_known_to_all(team: ProcessTeam) -> None:
    told = "PeerFailedError: saving failed in process 1 of the group: OSError: the disk is full"
    assert team.run(failing, processes=3) == [told, "OSError: the disk is full", told]


def out_of_step(group: ProcessGroup) -> str:
    """The second process fails where the others exchange something else."""
    peers = Peers(group)
    try:
        if peers.rank == 1:
            peers.attempt(lambda: 1 / 0, "preparing", report_once=True)
        return str(peers.values("something else", "agreeing"))
    except ZeroDivisionError as error:
        return f"reports {error}"


def test_an_error_that_nobody_else_understands_is_reported_where_it_is(team: ProcessTeam) -> None:
    said = team.run(out_of_step, processes=3)
    assert said[1] == "reports division by zero"
    assert "something else" in said[0]


def reported_once(group: ProcessGroup, failing: list[int]) -> str:
    peers = Peers(group)

    def work() -> int:
        if peers.rank in failing:
            raise OSError(f"disk {peers.rank} is full")
        return peers.rank

    try:
        return str(peers.attempt(work, "saving", report_once=True))
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def test_the_first_process_reports_for_all(team: ProcessTeam) -> None:
    assert team.run(reported_once, [], processes=3) == ["0", "1", "2"]
    elsewhere = "ReportedElsewhereError: OSError: disk"
    found = team.run(reported_once, [0, 1, 2], processes=3)
    assert found == ["OSError: disk 0 is full", *[f"{elsewhere} 0 is full"] * 2]
    found = team.run(reported_once, [2], processes=3)
    assert found[0] == "PeerFailedError: saving failed in process 2 of the group: OSError: disk 2 is full"
    assert found[1:] == [f"{elsewhere} 2 is full"] * 2


def full_disk() -> None:
    raise OSError("the disk is full")


def lonely(group: ProcessGroup) -> str:
    peers = Peers(group, timeout=2)
    if peers.rank == 1:
        return "it has nothing to say"
    try:
        peers.attempt(full_disk, "saving")
    except OSError as error:
        return str(error)
    return "nothing"


def test_an_error_is_not_hidden_by_others_that_are_gone(tmp_path: Path) -> None:
    team = ProcessTeam(2, tmp_path)
    try:
        assert team.outcomes(lonely) == ["the disk is full", "it has nothing to say"]
    finally:
        team.close()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_the_timeout_is_a_positive_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(module.TIMEOUT_VARIABLE, text)
    with pytest.raises(ValueError, match=f"must be a positive number of seconds, got '{text}'"):
        module.chosen_timeout()
    monkeypatch.setenv(module.TIMEOUT_VARIABLE, "2.5")
    assert module.chosen_timeout() == 2.5


def test_what_a_group_is() -> None:
    with pytest.raises(TypeError, match="group"):
        Peers("WORLD")
