"""A predictor that many threads share, that is abandoned, closed, forked or interrupted."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import ramen
from ramen.predict.predictor import Counts
from tests.helpers.leftovers import left_running
from tests.helpers.photos import photo

PATIENCE = 120  # seconds; only a failure takes so long


@pytest.fixture
def method(clf: ramen.ZeroShotClassifier) -> ramen.Method:
    return ramen.create("ramen", clf, capacity=6)


def test_many_threads_get_their_own_results(method: ramen.Method) -> None:
    threads, images, size = 8, 25, 4
    found: dict[int, list[ramen.Result]] = {}
    start = threading.Barrier(threads)

    def call(number: int) -> None:
        start.wait(PATIENCE)
        sources = ((f"{number}-{n}", b"junk" if n == 7 else photo(n)) for n in range(images))
        found[number] = list(predictor.classify(sources))

    with ramen.Predictor(method, batch_size=size) as predictor:
        callers = [threading.Thread(target=call, args=(number,)) for number in range(threads)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(PATIENCE)
        counts = predictor.counts
    assert not left_running()
    for number in range(threads):
        assert [result.key for result in found[number]] == [f"{number}-{n}" for n in range(images)]
        assert [n for n, result in enumerate(found[number]) if result.error] == [7]
        versions = [result.state_version for result in found[number]]
        assert versions == sorted(versions)
    answered = [result for results in found.values() for result in results if result.error is None]
    assert all(result.adapted for result in answered)
    assert counts == Counts(
        images=threads * (images - 1), errors=threads, changed=sum(result.changed for result in answered)
    )
    assert method.images_seen == counts.images
    assert sum(memory.seen for memory in method.state.memories.values()) == counts.images
    # each batch has a version of its own: that of the batch before it and its own images
    sizes = sorted(Counter(result.state_version for result in answered).items())
    assert [version for version, _ in sizes] == list(itertools.accumulate(count for _, count in sizes))


def test_results_may_be_read_in_turns(method: ramen.Method) -> None:
    """Also within the loop over another stream's results: nothing is locked meanwhile."""
    with ramen.Predictor(method, batch_size=2) as predictor:
        keys = []
        for outer in predictor.classify([("a", photo(0)), ("b", photo(1)), ("c", photo(2))]):
            keys.append(outer.key)
            keys += [inner.key for inner in predictor.classify([("x", photo(3))])]
            keys.append(predictor.classify_one(("y", photo(4))).key)
    assert keys == ["a", "x", "y", "b", "x", "y", "c", "x", "y"]


# -- ends -------------------------------------------------------------------------------------------------


def endless() -> Iterator[Image.Image]:
    return (photo(number % 10) for number in itertools.count())


@pytest.mark.parametrize("workers", [0, 1])
def test_results_that_nobody_reads_leave_nothing_running(method: ramen.Method, workers: int) -> None:
    with ramen.Predictor(method, batch_size=3, workers=workers) as predictor:
        for result in predictor.classify(endless()):
            assert result.error is None
            assert left_running()
            break
        assert not left_running()
        if workers == 0:
            with pytest.raises(ZeroDivisionError):
                [1 // 0 for _ in predictor.classify(endless())]
            gc.collect()
            assert not left_running()
            results = predictor.classify(endless())
            next(results)
            del results
            assert not left_running()
        predictor.classify(endless())  # never read
        assert not left_running()
        assert [result.key for result in predictor.classify([photo(0)])] == ["image 0"]


def test_a_closed_predictor_says_so(method: ramen.Method) -> None:
    predictor = ramen.Predictor(method, batch_size=2)
    waiting, unread = predictor.classify(endless()), predictor.classify(endless())
    next(waiting)
    predictor.close()
    predictor.close()
    assert not left_running()
    next(waiting)  # of the batch that had been answered
    for results in (waiting, unread):
        with pytest.raises(RuntimeError, match="closed"):
            next(results)
    for call in (
        lambda: predictor.classify([]),
        lambda: predictor.classify_one(photo(0)),
        predictor.flush,
        predictor.__enter__,
    ):
        with pytest.raises(RuntimeError, match="this predictor is closed"):
            call()
    assert method.images_seen == 2


def test_a_fork_is_refused_and_leaves_the_predictor_alone(method: ramen.Method) -> None:
    predictor = ramen.Predictor(method, batch_size=2)
    results = predictor.classify(endless())
    next(results)
    with predictor._lock:  # as if another thread were in the middle of a batch
        child = os.fork()
        if child == 0:
            refused = 0
            try:
                for call in (lambda: predictor.classify_one(photo(0)), lambda: list(results)):
                    try:
                        call()
                    except RuntimeError as error:
                        refused += "is a fork" in str(error)
                predictor.close()
            finally:
                os._exit(refused)
    deadline = time.monotonic() + PATIENCE
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 2
    assert len(list(itertools.islice(results, 5))) == 5
    predictor.close()


SCRIPT = """
import itertools, signal, sys, threading
import numpy as np
import torch
import ramen

def generate():
    yield np.zeros((40, 40, 3), np.uint8)
    print("started", flush=True)
    if sys.argv[2] == "waits":
        threading.Event().wait()
    yield from itertools.repeat(np.zeros((40, 40, 3), np.uint8))

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the shell has set
    tower = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 8), torch.nn.LayerNorm(8))
    clf = ramen.ZeroShotClassifier(tower, torch.randn(3, 8), preprocess=ramen.Preprocess(4))
    with ramen.Predictor(ramen.create("tent", clf), batch_size=1, workers=int(sys.argv[1])) as predictor:
        for number, result in enumerate(predictor.classify(generate())):
            if number == 0:
                print("answered", result.error, flush=True)
"""


@pytest.mark.parametrize(("workers", "kind"), [("0", "waits"), ("1", "runs")])
def test_ctrl_c_ends_everything(tmp_path: Path, workers: str, kind: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), workers, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(ramen.__file__).parents[1])},
        start_new_session=True,
    ) as process:
        assert sorted(process.stdout.readline().strip() for _ in range(2)) == ["answered None", "started"]
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    deadline = time.monotonic() + PATIENCE
    while _group_exists(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
