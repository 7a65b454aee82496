"""Batches that are prepared while the previous ones are being answered.

``ramen.prefetch`` decodes files in worker processes; ``prefetch_reads`` reads a source in threads and times
the stages. Both go through ``in_order``: results in the order of the requests, a bounded number of them ahead
of time, an error in the place of its batch, and nothing left running at the end.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.images.preprocess import ImageInput, Preprocess
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.devices import parse_dtype, upload
from ramen.utils.workers import process_pool

Batch = ImageInput | Sequence[ImageInput]
Request = TypeVar("Request")
Result = TypeVar("Result")


def prefetch(
    batches: Iterable[Batch],
    classifier: ZeroShotClassifier,
    *,
    workers: int = 0,
    ahead: int = 2,
    dtype: str | torch.dtype = torch.float32,
) -> Iterator[Tensor]:
    """``classifier.preprocess`` of each batch; worker processes decode, resize and crop files.

    The tensors are the same for any number of workers, in the order of the batches. An error is raised in the
    place of its batch and ends the iteration. The workers end with the iteration, and with this process.

        batches = stream.batches(100)
        for batch, images in zip(batches, prefetch(map(stream.read, batches), clf, workers=8)):
            out = method.predict(images)

    A script that uses workers must keep what it runs under ``if __name__ == "__main__":``, since each of them
    is a fresh Python that imports the script.

    Args:
        batches: Each in a form that ``classifier.preprocess`` takes. With workers they are requested ahead of
            time.
        classifier: Provides the preprocessing and the device.
        workers: Processes beside this one. If the first batch is a tensor, there is nothing to decode, and
            none are started.
        ahead: Batches in preparation per worker. One of 100 images of 224 x 224 takes 15 MB.
        dtype: The dtype of the tensors.
    """
    workers = checks.integer("workers", workers, 0)
    ahead = checks.integer("ahead", ahead, 1)
    dtype = parse_dtype(dtype)
    preprocess = classifier.preprocess
    remaining = iter(batches)
    first = list(itertools.islice(remaining, 1))
    every = itertools.chain(first, remaining)
    if workers == 0 or not first or isinstance(first[0], Tensor):
        return (classifier.preprocess(batch, dtype=dtype) for batch in every)
    arrays = in_order(every, partial(_pixels, preprocess), partial(process_pool, workers), workers * ahead)
    return (
        preprocess.normalise(upload(torch.from_numpy(pixels), classifier.device), dtype=dtype)
        for pixels in arrays
    )


def prefetch_reads(
    requests: Iterable[Request],
    read: Callable[[Request], Batch],
    classifier: ZeroShotClassifier,
    *,
    threads: int = 0,
    stage: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
) -> Generator[Tensor, None, None]:
    """``classifier.preprocess(read(request))`` of each request, ahead of time in threads.

    Args:
        requests: What ``read`` takes.
        read: Called by one thread at a time, as a source need not allow for more.
        classifier: Provides the preprocessing and the device.
        threads: How many, each with one batch; with 0 a batch is prepared when it is asked for.
        stage: Entered as ``stage("read")`` and ``stage("preprocess")`` around the two steps of each batch.
    """
    read_lock = threading.Lock()

    def prepare(request: Request) -> Tensor:
        with read_lock, stage("read"):
            pictures = read(request)
        with stage("preprocess"):
            return classifier.preprocess(pictures)

    if not threads:
        return (prepare(request) for request in requests)
    pool = partial(ThreadPoolExecutor, threads, thread_name_prefix="ramen-prefetch")
    return in_order(requests, prepare, pool, threads)


def in_order(
    requests: Iterable[Request],
    prepare: Callable[[Request], Result],
    make_pool: Callable[[], Executor],
    ahead: int,
) -> Generator[Result, None, None]:
    """``prepare(request)`` of each request, in their order, up to ``ahead`` of them in preparation.

    An error, also one of the requests themselves, is raised in its place and ends the iteration.
    """
    pool = make_pool()
    remaining = iter(requests)
    pending: deque[Future[Result]] = deque()
    try:
        while True:
            while len(pending) < ahead and (future := _submit(pool, prepare, remaining)) is not None:
                pending.append(future)
            if not pending:
                return
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submit(
    pool: Executor, prepare: Callable[[Request], Result], remaining: Iterator[Request]
) -> Future[Result] | None:
    """The next request under way, None after the last one; an error of the requests waits its turn."""
    try:
        request = next(remaining)
    except StopIteration:
        return None
    except Exception as error:
        failed: Future[Result] = Future()
        failed.set_exception(error)
        return failed
    return pool.submit(prepare, request)


def _pixels(preprocess: Preprocess, batch: Any) -> NDArray[np.uint8]:
    """What a worker does with a batch. Its result is an array, which is sent through a pipe.

    A tensor would be sent through shared memory, of which a container often has no more than 64 MB.
    """
    return preprocess.pixels(batch, device="cpu").numpy()
