"""The memory of a group of processes against that of one process that sees the same global batches."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed import ProcessGroup

from ramen.memory.codecs import CODECS
from ramen.memory.group_memory import GroupMemory
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory
from ramen.utils.peers import Peers
from tests.helpers.process_team import TEAM_SIZE, ProcessTeam, cut
from tests.helpers.slow_tests import RUN_SLOW_TESTS

MOST = TEAM_SIZE
WIDTH, GRADIENT = 8, 70


@dataclass(frozen=True)
class Case:
    """A stream of random entries, and how processes share its batches."""

    queues: int = 3
    capacity: int = 4
    topk: int = 2
    codec: str = "fp16"
    fifo: str = "exact"
    causal: bool = False
    drawn: bool = False
    accumulate: torch.dtype = torch.float32
    parts: tuple[tuple[int, ...], ...] = ((3, 2), (0, 4), (5, 1))  # of each batch, per process
    seed: int = 0
    favourite: float = 0.0  # how often the first queue is taken, beside its share
    refused: float = 0.0  # how often an entry may not be stored
    restarts: tuple[int, ...] = field(default=())

    @property
    def processes(self) -> int:
        return len(self.parts[0])

    def plan(self, processes: int = 1) -> MemoryPlan:
        return MemoryPlan(
            self.queues,
            self.capacity,
            WIDTH,
            GRADIENT,
            codec=self.codec,
            blocks=[40, 30],
            fifo=self.fifo,
            processes=processes,
        )

    def batches(self) -> Iterator[dict[str, Tensor]]:
        draws = torch.Generator().manual_seed(self.seed)
        for sizes in self.parts:
            count = sum(sizes)
            queues = torch.randint(self.queues, (count,), generator=draws)
            often = torch.rand(count, generator=draws) < self.favourite
            yield {
                "queues": torch.where(often, 0, queues),
                "embeddings": torch.nn.functional.normalize(
                    torch.randn(count, WIDTH, generator=draws), dim=1
                ),
                "gradients": torch.randn(count, GRADIENT, generator=draws),
                "entropies": torch.rand(count, generator=draws),
                "keep": torch.rand(count, generator=draws) >= self.refused,
                "tags": torch.randint(100, (count,), generator=draws),
            }


def step(memory: Any, case: Case, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """What ``Ramen.step`` does with a memory, with weights that depend on all that an image retrieves."""
    count = len(batch["queues"])
    memory.admit(count)
    memory.announce(batch["tags"])
    arguments = {name: batch[name] for name in ("queues", "embeddings", "gradients", "entropies", "keep")}
    entries = memory.stage(**arguments)
    staged = entries if case.causal else None
    if staged is None:
        memory.put(entries)
    draw = (7, entries.numbers) if case.drawn else None
    found = memory.select(batch["embeddings"], case.topk, staged=staged, draw=draw)
    weights = torch.where(found.valid, (-found.distances - found.entropies).exp(), 0)
    weights = weights / weights.sum((1, 2), keepdim=True).clamp_min(1e-6)
    sums = memory.aggregate(found, weights, staged=staged)
    if staged is not None:
        memory.put(staged)
    columns = ("valid", "distances", "entropies", "tags", "numbers")
    return {
        **{name: torch.where(found.valid, getattr(found, name), 0) for name in columns},
        "weights": weights,
        "sums": sums,
        "keep": entries.keep,
    }


def alone(case: Case) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    memory = Memory(case.plan())
    memory.accumulate = case.accumulate
    return [step(memory, case, batch) for batch in case.batches()], memory.state()


def in_group(group: ProcessGroup, case: Case) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    peers = Peers(group)
    memory = GroupMemory(case.plan(peers.size), peers)
    memory.accumulate = case.accumulate
    answers = []
    for number, (sizes, batch) in enumerate(zip(case.parts, case.batches(), strict=True)):
        peers.begin(sizes[peers.rank])
        own = {name: cut(column, sizes, peers.rank) for name, column in batch.items()}
        answers.append(step(memory, case, own))
        if number in case.restarts:
            state, memory = memory.state(), GroupMemory(case.plan(peers.size), peers)
            memory.accumulate = case.accumulate
            memory.restore(state)
    return answers, memory.state()


def check(team: ProcessTeam, case: Case) -> None:
    expected, whole = alone(case)
    results = team.run(in_group, case, processes=case.processes)
    for number, answer in enumerate(expected):
        found = {name: torch.cat([answers[number][name] for answers, _ in results]) for name in answer}
        for name in ("valid", "tags", "numbers", "entropies", "distances", "weights", "keep"):
            assert torch.equal(found[name], answer[name]), (name, number)
        if case.accumulate == torch.float64:
            assert torch.equal(found["sums"].float(), answer["sums"].float())
        size = answer["sums"].abs().max().clamp_min(1e-30)
        assert (found["sums"] - answer["sums"]).abs().max() / size < 1e-6
    joined = Memory(case.plan()).join(share for _, share in results)
    memory = Memory(case.plan())
    memory.restore(joined)
    assert_same_content(memory.state(), whole)


def assert_same_content(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """The same entries in the same slots; the order of rows is free."""
    assert found.keys() == expected.keys()
    for name in found.keys() - {"table"}:
        if name in ("counts", "used", "seen", "ages"):
            assert torch.equal(found[name], expected[name]), name
        else:
            held = expected["table"] >= 0
            assert torch.equal(found["table"] >= 0, held)
            rows = [state[name][state["table"][held]][:-1] for state in (found, expected)]
            assert torch.equal(*rows), name


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("causal", [False, True], ids=["batch", "causal"])
def test_every_codec_and_visibility(team: ProcessTeam, codec: str, causal: bool) -> None:
    parts = ((4, 3, 5), (0, 6, 1), (3, 0, 0), (2, 2, 2), (7, 1, 0))
    for accumulate in (torch.float32, torch.float64):
        check(team, Case(4, 6, 3, codec, causal=causal, parts=parts, accumulate=accumulate, refused=0.2))


@pytest.mark.parametrize("processes", range(1, MOST + 1))
@pytest.mark.parametrize("causal", [False, True], ids=["batch", "causal"])
def test_one_queue_is_cut_into_pieces(team: ProcessTeam, processes: int, causal: bool) -> None:
    parts = tuple(tuple((rank + batch) % 4 for rank in range(processes)) for batch in range(1, 9))
    parts = tuple(sizes for sizes in parts if sum(sizes))
    case = Case(1, 24, 5, "int8", causal=causal, parts=parts, refused=0.1)
    if processes > 1:
        assert case.plan(processes).pieces.per_queue > 1
    check(team, case)


def test_random_entries_are_the_same(team: ProcessTeam) -> None:
    for queues, causal in ((5, False), (1, False), (1, True)):
        parts = ((6, 3, 1), (0, 9, 0), (4, 4, 4))
        check(team, Case(queues, 6, 2, drawn=True, causal=causal, parts=parts))


def test_the_published_order(team: ProcessTeam) -> None:
    parts = ((6, 3, 1), (0, 9, 0), (4, 4, 4), (9, 9, 9))
    check(team, Case(4, 3, 2, fifo="float16", parts=parts, favourite=0.5))


def test_a_share_resumes(team: ProcessTeam) -> None:
    parts = ((6, 3), (0, 9), (4, 4), (2, 1))
    for queues in (1, 3):
        check(team, Case(queues, 4, 2, "sign", parts=parts, restarts=(0, 2)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    processes = draw(st.integers(2, MOST))
    capacity = draw(st.integers(1, 9))
    sizes = st.tuples(*[st.integers(0, 5)] * processes).filter(any)
    return Case(
        queues=draw(st.integers(1, 7)),
        capacity=capacity,
        topk=draw(st.integers(1, capacity)),
        codec=draw(st.sampled_from(CODECS)),
        causal=draw(st.booleans()),
        drawn=draw(st.booleans()),
        accumulate=draw(st.sampled_from([torch.float32, torch.float64])),
        parts=tuple(draw(st.lists(sizes, min_size=1, max_size=6))),
        seed=draw(st.integers(0, 1000)),
        favourite=draw(st.sampled_from([0.0, 0.9])),
        refused=draw(st.sampled_from([0.0, 0.3, 1.0])),
        restarts=draw(st.sampled_from([(), (0,)])),
    )


@settings(max_examples=500 if RUN_SLOW_TESTS else 25, deadline=None)
@given(case=cases())
def test_any_classes_parts_and_codecs(team: ProcessTeam, case: Case) -> None:
    check(team, case)
