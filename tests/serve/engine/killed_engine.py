"""A program that answers images until it is killed, and says how many it has answered."""

import itertools
import sys

import torch

from ramen import testing
from tests.serve.engine.engines import ask, engine

if __name__ == "__main__":
    torch.set_num_threads(1)
    save_every = int(sys.argv[2]) if sys.argv[2].isdigit() else sys.argv[2]
    with engine(testing.small_classifier(), state=sys.argv[1], save_every=save_every) as where:
        for number in itertools.count(1):
            for name in ("a", "b"):
                ask(where, name, number)
            print(number, flush=True)
