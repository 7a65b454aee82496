"""Any number of workers gives the same tensors; errors come in their place; nothing is left running."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ramen
from ramen import testing
from ramen.models import prefetch as module
from ramen.models.prefetch import prefetch, prefetch_reads
from tests.helpers.slow_tests import full

PATIENCE = 120  # seconds; a busy machine takes long to start a Python with torch


@pytest.fixture
def clf() -> ramen.ZeroShotClassifier:
    return testing.small_classifier()


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    found = []
    for index, (height, width) in enumerate([(40, 50), (33, 32), (64, 20), (32, 32), (90, 91), (35, 36)]):
        found.append(tmp_path / f"{index}.jpg")
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(found[-1])
    return found


def test_workers_change_nothing_and_errors_keep_their_place(
    clf: ramen.ZeroShotClassifier, paths: list[Path], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(paths[0].read_bytes()[:300])
    batches = [paths[:3], [str(paths[3])], paths[4:], paths[:2], [paths[0], damaged], paths[:1]]
    before = torch.get_rng_state()
    results = {}
    for workers in (0, 2):
        results[workers], images = [], prefetch(batches, clf, workers=workers, dtype="float16")
        with pytest.raises(ValueError, match=r"damaged\.jpg cannot be read as an image: ") as raised:
            results[workers].extend(images)
        assert next(images, None) is None  # it has ended
        results[workers].append(str(raised.value))
    assert len(results[0]) == len(results[2]) == 5
    assert results[0][-1] == results[2][-1]
    assert all(torch.equal(a, b) for a, b in zip(results[0][:-1], results[2][:-1], strict=True))
    assert torch.equal(results[2][2], clf.preprocess(paths[4:], dtype="float16"))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_error_of_the_batches_themselves_waits_its_turn(
    clf: ramen.ZeroShotClassifier, paths: list[Path]
) -> None:
    def batches() -> Iterator[list[Path]]:
        yield paths[:2]
        yield paths[2:4]
        raise KeyError("no such batch")

    images = prefetch(batches(), clf, workers=1, ahead=3)
    assert [len(next(images)), len(next(images))] == [2, 2]
    with pytest.raises(KeyError, match="no such batch"):
        next(images)


def test_tensors_and_nothing_start_no_worker(
    clf: ramen.ZeroShotClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "process_pool", None)
    batch = torch.randint(256, (4, 3, 40, 40), dtype=torch.uint8)
    (result,) = prefetch([batch], clf, workers=4)
    assert torch.equal(result, clf.preprocess(batch))
    assert list(prefetch([], clf, workers=4)) == []


class Source:
    """Reads uint8 images of its own; notices two readers at once."""

    def __init__(self) -> None:
        self.images = torch.randint(256, (40, 3, 40, 40), dtype=torch.uint8)
        self.readers = self.most_readers = 0

    def read(self, part: slice) -> torch.Tensor:
        self.readers += 1
        self.most_readers = max(self.most_readers, self.readers)
        time.sleep(0.002)
        self.readers -= 1
        if part.start >= len(self.images):
            raise IndexError(f"no images from {part.start} on")
        return self.images[part]


def parts(count: int) -> list[slice]:
    return [slice(start, start + 7) for start in range(0, count, 7)]


@pytest.mark.parametrize("threads", [0, 1, 3, 50])
def test_threads_change_nothing_and_read_one_at_a_time(clf: ramen.ZeroShotClassifier, threads: int) -> None:
    source, stages = Source(), []

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        yield
        stages.append(name)

    found = list(prefetch_reads(parts(40), source.read, clf, threads=threads, stage=stage))
    expected = [clf.preprocess(source.images[part]) for part in parts(40)]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert source.most_readers == 1
    assert [stages.count(name) for name in ("read", "preprocess")] == [6, 6]


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_of_a_read_keeps_its_place_and_ends_the_threads(
    clf: ramen.ZeroShotClassifier, threads: int
) -> None:
    images = prefetch_reads(parts(50), Source().read, clf, threads=threads)
    assert [len(next(images)) for _ in range(6)] == [7, 7, 7, 7, 7, 5]
    with pytest.raises(IndexError, match="no images from 42 on"):
        next(images)
    assert next(images, None) is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ramen-prefetch")]


def test_threads_end_if_nobody_asks_any_more(clf: ramen.ZeroShotClassifier) -> None:
    source = Source()
    images = prefetch_reads(itertools.repeat(slice(0, 7)), source.read, clf, threads=2)
    next(images)
    images.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ramen-prefetch")]


SCRIPT = """
import sys, multiprocessing, itertools, signal, time
from ramen import testing
from ramen.models.prefetch import prefetch, prefetch_reads

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the shell has set
    images = prefetch(itertools.repeat([sys.argv[1]]), testing.small_classifier(), workers=1)
    next(images)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    for _ in images:
        time.sleep(0.01)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to look for processes")
@pytest.mark.parametrize("kind", full([signal.SIGINT, signal.SIGKILL], [signal.SIGKILL]))
def test_no_worker_outlives_its_parent(kind: signal.Signals, paths: list[Path], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    source = str(Path(ramen.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, str(script), str(paths[0])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        start_new_session=True,  # the signal goes to the parent alone
    ) as parent:
        workers = parent.stdout.readline().split()
        assert len(workers) == 1
        assert all(Path("/proc", worker).is_dir() for worker in workers)
        parent.send_signal(kind)
        parent.wait(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while any(_runs(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _runs(process: str) -> bool:
    try:  # one that has ended and that nobody has asked about is still listed, as a zombie
        return Path("/proc", process, "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
