"""Threads and processes that a predictor has left running."""

import multiprocessing
import threading
from multiprocessing.process import BaseProcess

from tests.helpers.process_team import TEAM_NAME


def left_running() -> list[str]:
    """Names of the predictor's threads and of all child processes."""
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("ramen-")]
    return threads + [child.name for child in child_processes()]


def child_processes() -> list[BaseProcess]:
    """Processes that this one has started, but for those that tests share."""
    return [child for child in multiprocessing.active_children() if not child.name.startswith(TEAM_NAME)]
