"""A classifier for production: a stream of images in, one result per image out, whatever happens."""

import os
import threading
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from ramen.client.result import Result
from ramen.images.file_checks import DEFAULT_FORMATS, MAX_BYTES, MAX_PIXELS, DecodingSettings
from ramen.methods import Method
from ramen.predict.answers import BatchAnswers, BatchResults
from ramen.predict.decoding import DecodedSource, DecodedStreams, Decoder
from ramen.predict.sources import NoImage, Source, expand
from ramen.utils import checks

if TYPE_CHECKING:
    from ramen.state import StateStore


@dataclass(frozen=True)
class Counts:
    """What a predictor has answered since it was created."""

    images: int = 0  # sources with an answer
    errors: int = 0  # sources without one
    zero_shot_fallbacks: int = 0  # images answered zero-shot because the method failed
    changed: int = 0  # images whose label differs from the zero-shot one
    # Images that the method could not use, as something about them was not finite; counted by the method,
    # since it was created or reset
    refused: int = 0


class Predictor:
    """Classifies streams of images with a method that adapts to them.

    It decodes ahead of time, beside the device; makes batches; predicts; and, with a store, keeps what was
    learned. Every source gets one result, in the order of the sources: an answer, or an error that says why
    there is none. If the method fails, the classifier answers zero-shot.

        with ramen.Predictor(method) as predictor:
            for result in predictor.classify("photos/"):
                print(result.key, result.label, result.probability, result.error)

    One predictor serves many threads: each may call ``classify``, and gets its own results, in order. Batches
    are answered one at a time, whichever thread they are from, so all callers share one stream of adaptation.
    Nobody else may use the method meanwhile. A predictor serves the process that created it, not its forks.

    Args:
        method: What answers, such as ``ramen.create("ramen", clf)``. Its classifier must know how to
            preprocess images. It must not belong to a group of processes.
        store: A folder that keeps what the method has learned, so that another predictor can resume.
        batch_size: How many sources are answered together; those that cannot be decoded count too.
        max_delay: Seconds after which a batch is answered that is not full, for sources that arrive slowly.
            None waits until it is full or the sources end, so that the sources alone decide the answers.
        workers: Processes that decode, beside this one, which decodes in a thread if there are none. A
            script that uses them must keep what it runs under ``if __name__ == "__main__":``. They run as
            long as results are being read.
        save_every: With a store, when the state is written: after each ``"batch"``, or less often; see
            ``ramen.state``.
        formats: Image formats that are accepted.
        max_pixels: The most pixels that an image may have.
        max_bytes: The most bytes that a file may have.
        orient: Turn images as their EXIF orientation says.

    Attributes:
        resumed: The results of the last batch that the store had saved when it was opened.
        recovered: What had to be repaired when the store was opened, in words.
    """

    def __init__(
        self,
        method: Method,
        store: str | os.PathLike[str] | None = None,
        *,
        batch_size: int = 32,
        max_delay: float | None = None,
        workers: int = 0,
        save_every: Any = "batch",
        formats: tuple[str, ...] = DEFAULT_FORMATS,
        max_pixels: int = MAX_PIXELS,
        max_bytes: int = MAX_BYTES,
        orient: bool = True,
    ) -> None:
        if not isinstance(method, Method):
            raise TypeError(f"method must be a ramen.Method, got {type(method).__name__}")
        if method.peers is not None:
            raise ValueError(
                "method must not belong to a group of processes, got one of "
                f"{method.peers.size}: call method.predict and method.save, as docs/scaling.md shows"
            )
        self._decoder = Decoder(
            method.classifier.preprocess,
            DecodingSettings(formats, max_pixels, max_bytes, orient),
        )
        self._streams = DecodedStreams(
            self._decoder,
            checks.integer("workers", workers, 0),
            checks.integer("batch_size", batch_size, 1),
            None if max_delay is None else checks.number("max_delay", max_delay, 0),
        )
        self._method = method
        self._answers = BatchAnswers(method)
        self._counts = Counts(refused=method.images_refused)
        # reentrant: the handler of a signal may close the predictor in the middle of a batch
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._closed = False
        self._store = _open_store(store, method, save_every)
        self.resumed: tuple[Result, ...] = () if self._store is None else self._store.answers
        self.recovered: str | None = None if self._store is None else self._store.recovered

    @property
    def method(self) -> Method:
        """What answers."""
        return self._method

    @property
    def counts(self) -> Counts:
        """What was answered so far, up to a whole batch."""
        return self._counts

    # -- answers --------------------------------------------------------------------------------------

    def classify(self, sources: object) -> Generator[Result, None, None]:
        """One result per source, in order, as soon as its batch is answered.

        A thread of its own iterates over ``sources``, about two batches ahead of the results; that files are
        closed and arrays are written to after they were given does no harm. An exception that ``sources``
        raises is raised here, after the results for everything that came before it. Whoever stops reading,
        by ``break`` or ``close()``, ends what was started for these results.

        Args:
            sources: Paths of files or folders, patterns such as ``"photos/**/*.jpg"``, ``bytes``, binary file
                objects, PIL images, arrays, uint8 tensors, ``(key, source)`` pairs, and iterables of all of
                these; see ``ramen.predict.sources.expand``.
        """
        return _each(self.batches(sources))

    def batches(self, sources: object) -> Generator[list[Result], None, None]:
        """As ``classify``, but the results of one batch after the other, as they are answered.

        With a store, a batch is saved before the next one's results are handed out.

        Args:
            sources: As ``classify`` takes them.
        """
        self._check_usable()
        return self._batches(sources)

    def _batches(self, sources: object) -> Generator[list[Result], None, None]:
        self._check_usable()
        with self._streams.open(expand(sources)) as stream:
            while batch := stream.batch():
                yield self._answer(batch)
                self._check_usable()  # a fork would wait in vain for the next batch

    def classify_one(self, source: object) -> Result:
        """The result for a single image, which is decoded in this thread and answered alone."""
        self._check_usable()
        found = list(islice(expand(source), 2))
        if len(found) == 1:
            image = found[0]
        else:
            key = found[0].key if found else "image 0"
            came = "several" if found else "none"
            image = Source(key, NoImage(f"{key}: classify_one takes one image, got {came}"))
        return self._answer([self._decoder.decode(self._decoder.detach(image))])[0]

    def _answer(self, batch: Sequence[DecodedSource]) -> list[Result]:
        images = [(source.key, source.pixels) for source in batch if source.pixels is not None]
        keys = [key for key, _ in images]
        pixels = self._answers.stack([pixels for _, pixels in images]) if images else None
        with self._lock:
            self._check_usable()
            answered = BatchResults([]) if pixels is None else self._answers.answer(keys, pixels)
            results = self._in_order(batch, answered)
            self._count(results, answered.zero_shot_fallbacks, self._method.images_refused)
            if self._store is not None and images:
                self._store.save(results)
        return results

    def _in_order(self, batch: Sequence[DecodedSource], answered: BatchResults) -> list[Result]:
        version, answers = self._method.images_seen, iter(answered.results)
        return [
            Result.failed(source.key, source.error, version) if source.error is not None else next(answers)
            for source in batch
        ]

    def _count(self, results: Sequence[Result], fallbacks: int, refused: int) -> None:
        before, errors = self._counts, sum(result.error is not None for result in results)
        self._counts = replace(
            before,
            images=before.images + len(results) - errors,
            errors=before.errors + errors,
            zero_shot_fallbacks=before.zero_shot_fallbacks + fallbacks,
            changed=before.changed + sum(result.changed for result in results),
            refused=refused,
        )

    # -- the end --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until the store has written everything that was learned."""
        self._check_usable()
        with self._lock:
            if self._store is not None:
                self._store.flush()

    def close(self) -> None:
        """End all that is running and close the store; does nothing the second time.

        A batch that is being answered is finished first. Whoever is reading results gets a RuntimeError.
        """
        if os.getpid() != self._owner:  # nothing of what is running, nor the store, belongs to a fork
            self._closed = True
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._streams.stop()
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> "Predictor":
        self._check_usable()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if os.getpid() != self._owner:  # asked first, as a lock may have been held at the moment of the fork
            raise RuntimeError(
                f"this predictor belongs to process {self._owner}, of which this one is a fork: create one "
                "in each process"
            )
        if self._closed:
            raise RuntimeError("this predictor is closed")


def _each(batches: Generator[list[Result], None, None]) -> Generator[Result, None, None]:
    with closing(batches):
        for batch in batches:
            yield from batch


def _open_store(
    location: str | os.PathLike[str] | None, method: Method, save_every: Any
) -> "StateStore | None":
    if location is None:
        if save_every != "batch":
            raise ValueError(f"save_every={save_every!r} needs a store, got store=None")
        return None
    if not isinstance(location, str | os.PathLike):
        raise TypeError(f"store must be a path or None, got {type(location).__name__}")
    from ramen.state import open_store

    return open_store(location, method, save_every=save_every)
