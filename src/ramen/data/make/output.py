"""What makers of large sets share: whole files or none, a record of what was made, worker processes."""

import contextlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import PIL

import ramen
from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, RECIPES, SEVERITIES
from ramen.data.corruptions.frost import textures
from ramen.utils import checks

ALL_CORRUPTIONS = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
RECORD = "made.json"
UNFINISHED = ".unfinished"
Task = TypeVar("Task")

# One thread for each worker: they share the cores, and sums in another order could end in another byte.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def check_wanted(corruptions: Sequence[str], severities: Sequence[int]) -> tuple[list[str], list[int]]:
    """The corruptions and severities that are asked for, each once, in the order of the tables."""
    for name in corruptions:
        if name not in ALL_CORRUPTIONS:
            raise ValueError(f"corruption {name!r} is unknown{checks.nearest(name, ALL_CORRUPTIONS)}")
    for severity in severities:
        checks.integer("severity", severity, SEVERITIES[0], SEVERITIES[-1])
    if not corruptions or not severities:
        raise ValueError("corruptions and severities must name at least one each")
    return [n for n in ALL_CORRUPTIONS if n in corruptions], [s for s in SEVERITIES if s in severities]


def generator(seed: int, corruption: str, severity: int, first: int) -> np.random.Generator:
    """The generator of the piece whose first image has the number ``first``."""
    return np.random.default_rng((seed, ALL_CORRUPTIONS.index(corruption), severity, first))


def write_whole(
    path: Path, write: Callable[[IO[bytes]], object], by_way_of: Path | None = None, *, durable: bool = False
) -> None:
    """Write a file elsewhere, then rename it: it is there completely or not at all.

    Args:
        path: The file.
        write: Writes its content.
        by_way_of: Folder on the same disk where it is written; its own folder without it.
        durable: Wait until the disk has it, so that it survives a power cut.
    """
    temporary = (by_way_of or path.parent) / f".{path.name}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            write(file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def made_of(
    name: str, recipe: str, seed: int, piece: int, source: Mapping[str, Any], corruptions: Sequence[str]
) -> dict[str, Any]:
    """What decides every byte of a set, for its record."""
    facts = {
        "set": name,
        "recipe": recipe,
        "parameters": dict(RECIPES[recipe].parameters),
        "seed": seed,
        "images_with_one_generator": piece,
        "source": dict(source),
        "versions": {
            "ramen": ramen.__version__,
            "numpy": np.__version__,
            "pillow": PIL.__version__,
        },
    }
    return facts | ({"frost": textures().source} if "frost" in corruptions else {})


def claim(out: Path, facts: Mapping[str, Any]) -> None:
    """Write down what the set in ``out`` is made of; refuse a folder that holds something else."""
    record, wanted = out / RECORD, json.loads(json.dumps(facts))
    found: dict[str, Any] = {}
    if record.exists():
        try:
            found = dict(json.loads(record.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{record} cannot be read ({error}): delete {out} or choose another folder"
            ) from None
        for key in found.keys() & wanted.keys():
            if found[key] != wanted[key]:
                raise ValueError(
                    f"out: {out} holds a set made with {key} {_short(found[key])}, now it is "
                    f"{_short(wanted[key])}: delete the folder or choose another"
                )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"out: {out} must be new, empty, or begun by an earlier run (there is no {RECORD} in it)"
        )
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found | wanted, indent=2) + "\n"
    write_whole(record, lambda file: file.write(text.encode()), durable=True)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def check_room(out: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    free = shutil.disk_usage(out).free
    if needed > free:
        raise OSError(f"out: {out} needs {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free")


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_processes(work: Callable[[Task], object], tasks: Iterable[Task], workers: int) -> Iterator[Task]:
    """Do every task in one of the worker processes; yield each as it is done, in no order."""
    with _single_threaded():
        pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_prepare_worker)
        try:
            waiting = {pool.submit(work, task): task for task in tasks}
            for done in as_completed(waiting):
                done.result()
                yield waiting.pop(done)
        except BrokenProcessPool:
            raise RuntimeError(
                "a worker process ended (out of memory?): run the same again to continue, with fewer workers"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Worker processes that start meanwhile compute on one thread."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _prepare_worker() -> None:
    # An interrupt is the parent's business, and a worker must not outlive it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
