"""One of several processes that send load: a plan comes on standard input, outcomes go to standard output."""

import asyncio
import pickle
import sys

from service_checks.load import load

if __name__ == "__main__":
    pickle.dump(asyncio.run(load(pickle.load(sys.stdin.buffer))), sys.stdout.buffer)
