"""The process group of a command that ``torchrun`` has started; nothing for any other command."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from ramen.utils import checks

if TYPE_CHECKING:
    from ramen.utils.peers import Group

_STARTED_BY = "TORCHELASTIC_RUN_ID"  # torchrun names each of its runs


def under_torchrun() -> bool:
    """Whether ``torchrun`` has started this process."""
    return _STARTED_BY in os.environ


def is_first_process() -> bool:
    """Whether this process reports: the only one, or the first that ``torchrun`` has started."""
    return not under_torchrun() or _number("RANK") == 0


def local_processes() -> int:
    """How many processes ``torchrun`` has started on this machine; one without it."""
    return _number("LOCAL_WORLD_SIZE") if under_torchrun() else 1


def refuse_torchrun(command: str, instead: str) -> None:
    """ValueError if ``torchrun`` has started several processes of a command that does not share its work.

    The first process raises it, and the others end.

    Args:
        command: Its name.
        instead: What to do.
    """
    if under_torchrun() and _number("WORLD_SIZE") > 1:
        if not is_first_process():
            raise SystemExit(2)
        raise ValueError(f"{command} does not share its work between the processes of torchrun: {instead}")


@contextmanager
def torchrun_group(device: str) -> "Iterator[Group]":
    """The group of all processes that ``torchrun`` has started, within the block; None without it.

    On GPUs each process uses the one with its local number, as plain ``"cuda"``. Processes wait for each
    other no longer than ``ramen.utils.peers.chosen_timeout``, also on GPUs and while they meet.

    Args:
        device: Where the command computes.

    Raises:
        GroupError: They did not find each other.
    """
    if not under_torchrun():
        yield None
        return
    import torch
    import torch.distributed as dist

    from ramen.utils.peers import chosen_timeout, meeting

    if device not in ("cpu", "cuda"):
        raise ValueError(
            f"device must be 'cpu' or 'cuda' under torchrun, which deals out GPUs, got {device!r}"
        )
    if device == "cuda":
        local, there = _number("LOCAL_RANK"), torch.cuda.device_count()
        if local >= there:
            raise ValueError(f"--nproc-per-node must be at most {there}, the number of GPUs here, got more")
        torch.cuda.set_device(local)
    seconds = chosen_timeout()
    with meeting(seconds):
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timedelta(seconds=seconds))
    yield dist.group.WORLD
    # Only after success: a process that fails must not wait for others.
    dist.destroy_process_group()


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise ValueError(
            f"the environment variable {name} must be the number that torchrun sets, got {text!r}"
        )
    return checks.integer(name, int(text), 0)
