"""Batches made ready while the last one is being answered: worker processes decode, resize and crop files."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ramen.images.preprocess import ImageInput, Preprocess
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.devices import parse_dtype, upload

Batch = ImageInput | Sequence[ImageInput]


def prefetch(
    batches: Iterable[Batch],
    classifier: ZeroShotClassifier,
    *,
    workers: int = 0,
    ahead: int = 2,
    dtype: str | torch.dtype = torch.float32,
) -> Iterator[Tensor]:
    """``classifier.preprocess`` of one batch after the other; worker processes decode what is in files.

    The tensors are the same for any number of workers, in the order of the batches. An error comes in the
    place of its batch and ends the iteration. The workers end with it, and with this process.

        batches = stream.batches(100)
        for batch, images in zip(batches, prefetch(map(stream.read, batches), clf, workers=8)):
            out = method.predict(images)

    A script that uses workers must keep what it runs under ``if __name__ == "__main__":``, since each of them
    is a fresh Python that imports the script.

    Args:
        batches: Each of them in a form that ``classifier.preprocess`` takes. With workers they are asked for
            ahead of time.
        classifier: For its preprocessing and its device.
        workers: Processes beside this one; none if 0. Where the first batch is a tensor, there is nothing to
            decode, and none are started.
        ahead: Batches in the making for each worker. One of 100 images of 224 x 224 holds 15 MB.
        dtype: The type of the tensors.
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
    pixels = _from_workers(every, preprocess, workers, ahead)
    return (preprocess.normalise(upload(some, classifier.device), dtype=dtype) for some in pixels)


@dataclass(frozen=True)
class _Failure:
    """An error on its way to the place where it is due."""

    error: Exception


@dataclass(frozen=True)
class _Pixels(Dataset[Any]):
    """What a worker does with a batch. Its answer is an array, which goes through a pipe.

    A tensor would go through shared memory, of which a container often has no more than 64 MB.
    """

    preprocess: Preprocess

    def __getitem__(self, batch: Any) -> NDArray[np.uint8] | _Failure:
        if isinstance(batch, _Failure):
            return batch
        try:
            return self.preprocess.pixels(batch, device="cpu").numpy()
        except (ValueError, TypeError, OSError) as error:  # as they are, not wrapped in a worker's traceback
            return _Failure(error)


@dataclass(frozen=True)
class _Requests:
    """The batches, as the loader asks for them: ahead of time, so an error of theirs must wait its turn."""

    batches: Iterator[Batch]

    def __iter__(self) -> Iterator[Batch | _Failure]:
        try:
            yield from self.batches
        except Exception as error:
            yield _Failure(error)


def _from_workers(
    batches: Iterator[Batch], preprocess: Preprocess, workers: int, ahead: int
) -> Iterator[Tensor]:
    loader = DataLoader(
        _Pixels(preprocess),
        batch_size=None,  # a request is a whole batch
        sampler=_Requests(batches),
        collate_fn=_as_it_is,
        num_workers=workers,
        prefetch_factor=ahead,
        multiprocessing_context="spawn",  # a copy of a process that uses a GPU or threads would hang
        generator=torch.Generator(),  # the loader draws a number; from the global one others draw too
    )
    with torch.device("cpu"):
        answers = iter(loader)
    for answer in answers:
        if isinstance(answer, _Failure):
            raise answer.error
        yield torch.from_numpy(answer)


def _as_it_is(answer: Any) -> Any:
    return answer
