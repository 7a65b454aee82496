"""Batches that the processes of a group answer together: each decodes and answers its part of every batch.

All processes are given the same sources and make the same batches of them. The sources of a batch are dealt
out by their places: the first process has the first ones, and so on. A batch that is not full is dealt out
likewise, so that processes may have nothing of it. Each process gets all results.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from hashlib import sha256

import torch

from ramen.serve.batch_answers import BatchAnswers
from ramen.serve.decoders import DecodedSource
from ramen.serve.result import Result
from ramen.serve.sources import Elsewhere, Source
from ramen.utils.peers import GroupError, PeerFailedError, Peers


class GroupBatches:
    """The batches of a predictor whose method belongs to a group.

    Args:
        answers: The method.
        peers: The group.
        batch_size: How many sources make a batch of all processes.

    Attributes:
        refused: Images that the method could not use, in all processes, as of the last batch.
    """

    def __init__(self, answers: BatchAnswers, peers: Peers, batch_size: int) -> None:
        self._answers, self._peers, self._batch_size = answers, peers, batch_size
        start, stop = (batch_size * rank // peers.size for rank in (peers.rank, peers.rank + 1))
        self._part = range(start, stop)
        self.refused = 0

    def own_sources(self, sources: Iterator[Source]) -> Generator[Source, None, None]:
        """The sources, without the content of those that other processes decode."""
        for number, source in enumerate(sources):
            is_own = number % self._batch_size in self._part
            yield source if is_own else Source(source.key, Elsewhere())

    def take(self, next_batch: Callable[[], list[DecodedSource]]) -> list[DecodedSource]:
        """The next batch, if all processes have the same one; otherwise all of them raise an error."""
        batch: list[DecodedSource] = []
        error: BaseException | None = None
        try:
            batch = next_batch()
        except BaseException as raised:
            error = raised
        keys = "\0".join(source.key for source in batch).encode(errors="surrogatepass")
        own = {
            "sources": len(batch),
            "keys": sha256(keys).hexdigest(),
            "error": None if error is None else f"{type(error).__name__}: {error}",
        }
        said = self._peers.values(own, "starting a batch of sources")
        if error is not None:
            raise error
        for rank, theirs in enumerate(said):
            if theirs["error"] is not None:
                raise PeerFailedError(
                    f"reading sources failed in process {rank} of the group: {theirs['error']}"
                )
            if (theirs["sources"], theirs["keys"]) != (own["sources"], own["keys"]):
                raise GroupError(
                    "sources must be the same in all processes of the group, in the same order: this batch "
                    f"has {own['sources']} in process {self._peers.rank}, and {theirs['sources']} in process "
                    f"{rank}{', with other keys' if theirs['sources'] == own['sources'] else ''}"
                )
        return batch

    def answer(self, batch: Sequence[DecodedSource]) -> list[Result]:
        """The results for a batch of which this process has decoded its part.

        An error of the method is raised: the other processes cannot answer without this one.
        """
        own = [source for source in batch if source.pixels is not None or source.error is not None]
        images = [source for source in own if source.pixels is not None]
        answered: Iterator[Result] = iter(())
        if sum(self._peers.numbers(len(images), "counting the images of a batch")):
            answered = iter(self._predict(images))
        version = self._answers.method.images_seen
        results = [
            next(answered) if source.error is None else Result.failed(source.key, source.error, version)
            for source in own
        ]
        said = self._peers.values(
            {"results": [one.to_dict() for one in results], "refused": self._answers.method.images_refused},
            "gathering results",
        )
        self.refused = sum(theirs["refused"] for theirs in said)
        return [Result.from_dict(one) for theirs in said for one in theirs["results"]]

    def _predict(self, images: Sequence[DecodedSource]) -> list[Result]:
        pixels = [one.pixels for one in images if one.pixels is not None]
        size = self._answers.method.classifier.preprocess.size
        nothing = torch.empty(0, 3, *size, dtype=torch.uint8, device="cpu")
        stacked = self._answers.stack(pixels) if pixels else nothing
        return self._answers.adapted([one.key for one in images], stacked)
