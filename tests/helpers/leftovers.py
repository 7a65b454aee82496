"""Threads and processes that a predictor has left running."""

import multiprocessing
import threading


def left_running() -> list[str]:
    """Names of the predictor's threads and of all child processes."""
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("ramen-")]
    return threads + [child.name for child in multiprocessing.active_children()]
