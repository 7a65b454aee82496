"""The way of a batch through the package: few files, and Ramen's own is left only for its parts."""

import sys
from pathlib import Path
from types import FrameType

import torch

import ramen
from ramen import testing

PACKAGE = Path(ramen.__file__).parent
MOST_FILES = 20


def test_predict_visits_few_files() -> None:
    method = ramen.create("ramen", testing.small_classifier(), capacity=4, topk=2)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        method.predict(images)
    visited: list[str] = []  # in order, each time another file is entered

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            name = str(path.relative_to(PACKAGE))
            if not visited or visited[-1] != name:
                visited.append(name)

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        method.predict(images)
    finally:
        sys.setprofile(previous)
    assert len(set(visited)) <= MOST_FILES, sorted(set(visited))
    # for both passes, what is done with the memory, the weights of the support, the step and the answer
    assert visited.count("methods/ramen.py") <= 7  # a generator is entered twice
    assert "kernels/graphs.py" not in visited
