"""A real server in a thread of this process, at a free port."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastapi import FastAPI

from ramen.serve.http.server import StoppableServer, bind, url_of

PATIENCE = 60  # seconds until something that should have happened is given up


@dataclass
class RunningServer:
    url: str
    server: StoppableServer
    thread: threading.Thread

    def stop(self) -> None:
        self.server.stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the server did not stop"


@contextmanager
def running(app: FastAPI) -> Iterator[RunningServer]:
    """A server that listens, stopped when the block ends."""
    listening = threading.Event()
    with bind("127.0.0.1", 0) as bound:
        server = StoppableServer(app, listening.set)
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        assert listening.wait(PATIENCE), "the server did not start"
        handle = RunningServer(url_of(bound), server, thread)
        try:
            yield handle
        finally:
            handle.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)
