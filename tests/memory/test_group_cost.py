"""The model of a group's step against what processes count, and against plain arithmetic."""

import pytest
import torch
from torch.distributed import ProcessGroup

from ramen.memory.group_cost import LINKS, GroupStep, NetworkLink
from ramen.memory.group_memory import GroupMemory
from ramen.memory.plan import MemoryPlan
from ramen.utils.peers import Peers
from tests.helpers.process_team import ProcessTeam


def modelled(queues: int, processes: int, codec: str = "sign") -> GroupStep:
    plan = MemoryPlan(queues, 24, 8, 96, codec=codec, blocks=[32, 64], processes=processes)
    return GroupStep(plan, 60, 5)


def counted(group: ProcessGroup, queues: int) -> tuple[int, int, int]:
    """Bytes sent in a step in which no gradient is stored, those of stored gradients, and calls."""
    peers = Peers(group)
    work = modelled(queues, peers.size)
    sent = []
    for kept in (False, True):
        memory = GroupMemory(work.plan, peers)
        before = peers.traffic.bytes, peers.traffic.calls
        peers.begin(work.images)
        memory.admit(work.images)
        embeddings = torch.nn.functional.normalize(torch.randn(work.images, 8), dim=1)
        labels = torch.randint(queues, (work.images,), generator=torch.Generator().manual_seed(peers.rank))
        keep = torch.full((work.images,), kept)
        entries = memory.stage(
            labels, embeddings, torch.randn(work.images, 96), torch.rand(work.images), keep
        )
        memory.put(entries)
        found = memory.select(embeddings, work.topk)
        memory.aggregate(found, torch.ones_like(found.distances))
        sent.append(peers.traffic.bytes - before[0])
    return sent[0], sent[1] - sent[0], peers.traffic.calls - before[1]


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("queues", [1, 8])
def test_bytes_and_exchanges_are_those_that_processes_count(
    team: ProcessTeam, processes: int, queues: int
) -> None:
    work = modelled(queues, processes)
    sent = work.sent()
    rows = sent.pop("gradients")
    results = team.run(counted, queues, processes=processes)
    for others, _, calls in results:
        assert others == pytest.approx(sum(sent.values()))
        assert calls == len(work.sent())
    # Of the rows, a process keeps its own, which are about as many as the others have of them.
    assert sum(one for _, one, _ in results) == pytest.approx(processes * rows, rel=0.2, abs=1)


def test_work_stays_the_same_in_each_process() -> None:
    one, eight = modelled(8, 1), modelled(8, 8)
    assert eight.batch == 8 * one.batch
    assert eight.products() == one.products()
    assert eight.summed() == one.summed()
    assert eight.memory_bytes() < one.memory_bytes() / 6


def test_rates_and_crossings() -> None:
    work, slow = modelled(8, 4), NetworkLink("a slow one", 1e3, 0.0)
    seconds = work.exchange_seconds(slow)
    assert seconds == work.sent_bytes() / 1e3
    assert work.images_a_second(slow, 0.5) == pytest.approx(240 / (30 + seconds))
    assert work.images_a_second(slow, 0.5, launching=3.0) == pytest.approx(240 / (33 + seconds))
    assert work.of(1).images_a_second(slow, 0.5, launching=3.0) == 2.0  # by itself it launches one graph
    crossing = work.crossing(slow, 10.0)
    assert crossing is not None
    assert work.of(crossing).exchange_seconds(slow) > 600 >= work.of(crossing - 1).exchange_seconds(slow)
    assert work.processes_for(1e9, slow, 1.0) is None
    enough = work.processes_for(40.0, LINKS[0], 0.1)
    assert enough == 5  # ten images a second each, and a little for exchanges
