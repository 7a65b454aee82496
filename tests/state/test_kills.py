"""A process that is killed at any instant loses at most one batch, and the next one starts at once."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import torch

from ramen.state import open_store
from tests.state.killed_stream import BATCH, IMAGES
from tests.state.streams import assert_same_state, batches, make

KILLS = 200 if os.environ.get("RAMEN_SLOW_TESTS") else 12


@contextmanager
def victims(folder):
    """A function that runs a process until so many seconds after it has resumed, and returns its lines."""
    command = [sys.executable, "-m", "tests.state.killed_stream", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:

        def killed(after):
            print("go", file=parent.stdin, flush=True)
            process = int(parent.stdout.readline().removeprefix("process "))
            lines = [parent.stdout.readline()]
            time.sleep(after)
            os.kill(process, signal.SIGKILL)
            while (line := parent.stdout.readline()) and not line.endswith("killed\n"):
                lines.append(line)
            return [line.strip().split(maxsplit=2) for line in lines]

        yield killed
        parent.stdin.close()


def test_kills_at_random_instants(tmp_path):
    draw, answered, incomplete = random.Random(0), 0, 0
    with victims(tmp_path) as killed:
        for _ in range(KILLS):
            (_, resumed, recovered), *answers = killed(draw.uniform(0, 0.2))
            assert recovered == "None" or "cut off" in recovered
            incomplete += recovered != "None"
            # At most the last batch is lost, whose answers a caller may have seen.
            assert answered - BATCH <= int(resumed) <= answered + BATCH
            answered = int(answers[-1][1]) if answers else int(resumed)
    method = make(capacity=40)
    store = open_store(tmp_path, method)
    store.close()
    assert answered - BATCH <= method.images_seen <= answered + BATCH
    print(f"{KILLS} kills, {incomplete} within a record, {method.images_seen} images learned from")
    # Killed or not, it has learned the same.
    whole, stream = make(capacity=40), batches(IMAGES, BATCH)
    for number in range(method.images_seen // BATCH):
        whole.predict(stream[number % len(stream)])
    assert_same_state(method.state_dict(), whole.state_dict())
    assert torch.equal(method.predict(stream[0]).logits, whole.predict(stream[0]).logits)
