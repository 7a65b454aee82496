"""The state of a memory that several processes share, from shares to the whole and back.

A share is the state of the whole memory (``ramen.memory.storage``) with the entries of one process alone: its
table has -1 for the others, and its counts are those of the whole. It names the process and how many there
were. So the rows of all shares, one after the other, are the whole, and a process of another group picks its
rows from them.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ramen.memory.plan import MemoryPlan
from ramen.memory.row_table import ColumnSpec
from ramen.memory.stream_memory import expect, expect_names

SHARE = "share"
_SPARE_ROW = 0


def as_share(
    state: Mapping[str, Tensor], plan: MemoryPlan, rank: int, counts: Tensor, seen: int
) -> dict[str, Tensor]:
    """The share that a process holds, of the state of its own memory.

    Args:
        state: Of pieces of queues.
        plan: Of the whole memory.
        rank: The process.
        counts: Of the whole memory.
        seen: Images that all processes have offered.
    """
    there = (state["table"][:-1] >= 0).nonzero()[:, 0]
    table = _empty_table(plan, state["table"].device)
    table[plan.pieces.slot_here(rank, there)] = state["table"][there]
    share = {name: state[name] for name in plan.columns()}
    share |= {"table": table, "counts": counts.clone(), "used": state["used"]}
    if "ages" in state:  # whole queues, of which this process holds every so-manieth
        ages = state["ages"].new_zeros(plan.queues, plan.capacity)
        own = ages[rank :: plan.processes]
        own.copy_(state["ages"][: len(own)])
        share["ages"] = ages
    return share | {
        "seen": torch.tensor(seen, device="cpu"),
        SHARE: torch.tensor([rank, plan.processes], device="cpu"),
    }


def part_of(state: Mapping[str, Tensor], plan: MemoryPlan, rank: int) -> dict[str, Tensor]:
    """The state of a process's own memory, of a whole state or of a share that has its entries."""
    _expect_sound({name: state[name] for name in state if name != SHARE}, plan)
    slots, rows = _entries(state)
    owners, there = plan.pieces.slot_there(slots)
    own = owners == rank
    share = plan.share()
    table = _empty_table(share, state["table"].device)
    table[there[own]] = torch.arange(1, int(own.sum()) + 1, device=table.device)
    part = _rows(state, plan.columns(), rows[own])
    part |= {
        "table": table,
        "counts": plan.pieces.counts_there(rank, state["counts"]),
        "used": torch.tensor(int(own.sum()) + 1, device=state["used"].device),
        "seen": state["seen"],
    }
    if "ages" in state:
        ages = state["ages"].new_zeros(share.queues, share.capacity)
        theirs = state["ages"][rank :: plan.processes]
        ages[: len(theirs)] = theirs
        part["ages"] = ages
    return part


def joined(
    states: Iterable[Mapping[str, Tensor]], plan: MemoryPlan, rank: int | None = None
) -> dict[str, Tensor]:
    """The whole state of shares that are all there; or what a process of another group will hold of it.

    One share after the other is asked for, so that no more than one is in memory beside the result.

    Args:
        states: The shares.
        plan: Of the whole memory, with the processes that will hold it.
        rank: The process whose entries are wanted; all entries if not given.
    """
    parts, tables, present, last = [], [], [], None
    offset = 0
    for state in states:
        if SHARE not in state:
            raise ValueError("the states to be joined must be shares, got one of a whole memory")
        _expect_sound({name: state[name] for name in state if name != SHARE}, plan)
        expect(SHARE, state[SHARE], torch.int64, (2,))
        present.append(tuple(state[SHARE].tolist()))
        slots, rows = _entries(state)
        if rank is not None:
            own = plan.pieces.slot_there(slots)[0] == rank
            slots, rows = slots[own], rows[own]
        parts.append({name: column[1:] for name, column in _rows(state, plan.columns(), rows).items()})
        tables.append((slots, torch.arange(len(rows), device=slots.device) + offset + 1))
        offset += len(rows)
        last = _followed(last, state)
    if last is None or sorted(present) != [(number, len(present)) for number in range(len(present))]:
        raise ValueError(f"all shares of a memory are needed, got those of (process, processes): {present}")
    table = _empty_table(plan, last["table"].device)
    for slots, rows in tables:
        table[slots] = rows
    spare = _rows(last, plan.columns(), table.new_zeros(0))
    whole = {name: torch.cat([spare[name], *(part[name] for part in parts)]) for name in plan.columns()}
    whole |= {"table": table, "used": torch.tensor(offset + 1, device="cpu")}
    whole |= {name: last[name] for name in ("counts", "seen", "ages") if name in last}
    return whole


def expect_share(state: Mapping[str, Tensor], rank: int, processes: int) -> None:
    """Raise ValueError unless a state is the share of this process."""
    expect(SHARE, state[SHARE], torch.int64, (2,))
    theirs, of = state[SHARE].tolist()
    here = f"process {rank} of {processes}" if processes > 1 else "one process with the whole memory"
    if (theirs, of) != (rank, processes):
        raise ValueError(
            f"this state is the share of process {theirs} of {of}, and this is {here}: "
            "method.save(folder) and method.load(folder) take a memory from any group to any other"
        )


def _followed(last: Mapping[str, Tensor] | None, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the shares have in common, with the ages of all so far."""
    following = {name: state[name] for name in state if name != SHARE}
    if last is None:
        return following
    if not (torch.equal(last["counts"], state["counts"]) and torch.equal(last["seen"], state["seen"])):
        raise ValueError("the shares of a memory must be of the same moment, got different counts of images")
    if "ages" in last:
        following["ages"] = torch.maximum(last["ages"], state["ages"])  # zero if another process has it
    return following


def _entries(state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Slots that hold an entry, and their rows, in the order of the rows."""
    slots = (state["table"][:-1] >= 0).nonzero()[:, 0]
    slots = slots[state["table"][slots].argsort()]
    return slots, state["table"][slots]


def _rows(state: Mapping[str, Tensor], columns: Mapping[str, ColumnSpec], rows: Tensor) -> dict[str, Tensor]:
    """The spare row and these, of every column."""
    wanted = torch.cat([rows.new_tensor([_SPARE_ROW]), rows])
    return {name: state[name][wanted.to(state[name].device)] for name in columns}


def _empty_table(plan: MemoryPlan, device: torch.device) -> Tensor:
    table = torch.full((plan.slots + 1,), -1, device=device)
    table[-1] = _SPARE_ROW
    return table


def _expect_sound(state: Mapping[str, Tensor], plan: MemoryPlan) -> None:
    """Raise ValueError unless rows can be picked from a state; the memory itself checks what they hold."""
    columns, index = plan.columns(), plan.index()
    expect_names("the memory's state", state, {*columns, *index, "seen"})
    for name, (shape, dtype) in index.items():
        expect(name, state[name], dtype, shape)
    rows = int(state["used"])
    for name, column in columns.items():
        expect(name, state[name], column.dtype, (max(0, rows), *column.row_shape))
    table = state["table"]
    if rows < 1 or bool((table < -1).any()) or bool((table >= rows).any()) or table[-1] != _SPARE_ROW:
        raise ValueError("the memory's state is damaged: its table names rows that it does not have")
