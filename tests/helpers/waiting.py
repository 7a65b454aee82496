"""Waiting for what another process does."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 120.0  # seconds until something that should have happened is given up


def wait_until(condition: Callable[[], object], what: str = "nothing happened") -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def once(condition: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    """Act in a thread as soon as the condition holds."""

    def watch() -> None:
        wait_until(condition)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def checkpoint_of(result: Path) -> Path:
    """The file that is there as soon as the experiment with this result has a checkpoint."""
    return result.with_name(f".{result.stem}.ckpt")


def process_of(result: Path) -> int:
    """The process that runs the experiment with this result, according to its lock."""
    return int(json.loads(result.with_name(f".{result.stem}.lock").read_text())["pid"])


def has_ended(process: int) -> bool:
    """Whether a process is gone."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False
