"""Processes that learn and save until they are killed: python -m tests.state.killed_stream FOLDER.

For each line on standard input one process is forked, since importing everything takes seconds. It prints its
process number, what it resumed, and a line for each batch whose results a caller would have by then.
"""

import os
import sys

import torch

from ramen import testing
from ramen.state import open_store
from tests.state.streams import batches, make, results

BATCH = 3
IMAGES = 600


def learn(folder: str) -> None:
    method = make(capacity=40)
    store = open_store(folder, method)
    print(f"resumed {method.images_seen} {store.recovered}", flush=True)
    stream = batches(IMAGES, BATCH)
    while True:
        method.predict(stream[method.images_seen // BATCH % len(stream)])
        store.save(results(BATCH, method.images_seen))
        print(f"answered {method.images_seen}", flush=True)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    testing.small_classifier()  # imports the rest
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            print(f"process {os.getpid()}", flush=True)
            learn(folder)
        os.waitpid(child, 0)
        print("killed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
