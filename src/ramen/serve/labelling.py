"""Files into an output: what was interrupted is continued, and every file gets exactly one row."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Protocol

from ramen.serve.outputs.output import Output
from ramen.serve.photos import as_sources
from ramen.serve.result import Result


class AnswerCounts(Protocol):
    """How much a predictor has answered."""

    @property
    def images(self) -> int:
        """Sources with an answer."""

    @property
    def errors(self) -> int:
        """Sources without one."""


class ResultSource(Protocol):
    """What is needed of a predictor."""

    @property
    def counts(self) -> AnswerCounts:
        """What was answered so far, up to a whole batch."""

    @property
    def resumed(self) -> tuple[Result, ...]:
        """The results of the last batch that the state has learned."""

    def classify(self, sources: object) -> Iterator[Result]:
        """One result per source, in order."""


def forget_unlearned(output: Output, learned: int, batch_size: int) -> int:
    """Remove the last rows of a killed run if its state has not learned from them: they are to be done again.

    States are written in the background, so that rows may be there first, but no more than those of two
    batches. If more are ahead of the state, it is another one, or a damaged one: all rows stay, as they do if
    a file is gone. A group of processes writes its state less often: any number of its rows may be ahead, but
    the state must not be older than the run.

    Args:
        output: Knows whether the last run was killed.
        learned: How many images the state has seen.
        batch_size: Files per batch.

    Returns:
        How many rows were removed.
    """
    if not output.recovering:
        return 0
    ahead = 0
    first: int | None = None  # how many images the state had seen after the run's first batch
    in_first = 0  # how many of them were the batch's own
    for result in output.results_of_last_run():
        first = result.state_version if first is None else first
        in_first += result.state_version == first and result.error is None
        if result.state_version > learned:
            ahead += 1
            if not os.path.exists(result.key) or (ahead > 2 * batch_size and not output.by_group):
                return 0
    if output.by_group and first is not None and first - in_first > learned:
        return 0
    output.remove_last(ahead)
    return ahead


def recover(predictor: ResultSource, output: Output, files: Sequence[str]) -> list[Result]:
    """Results that the state of a killed run has learned and that it could not write; they are written now.

    Their images must not be classified again: the state would learn them twice.

    Args:
        predictor: Has the results of the last batch that its state has learned.
        output: Knows whether the last run was killed.
        files: That are not in the output; results of others are not ours.
    """
    missing = set(files)
    found = [result for result in predictor.resumed if result.key in missing] if output.recovering else []
    if found:
        output.append(found)
    return found


def label_files(
    predictor: ResultSource,
    files: Iterable[str],
    output: Output,
    *,
    stopped: Callable[[], bool] = lambda: False,
    after_batch: Callable[[Sequence[Result]], object] = lambda batch: None,
) -> None:
    """Classify files and write the results to the output, batch by batch.

    Args:
        predictor: What classifies.
        files: Paths, none of which is in the output.
        output: Has all results of a batch before the next one is answered.
        stopped: Whether somebody asked to stop: the batch that is being answered is then the last one.
        after_batch: Called with the results of each batch after they are written.
    """
    wanted = takewhile(lambda _: not stopped(), files)
    for batch in in_batches(predictor, as_sources(wanted)):
        output.append(batch)
        after_batch(batch)
        if stopped():
            break


def in_batches(predictor: ResultSource, sources: object) -> Iterator[list[Result]]:
    """The results in the batches in which they were answered; nobody else may use the predictor meanwhile."""
    batch: list[Result] = []
    received = predictor.counts.images + predictor.counts.errors
    for result in predictor.classify(sources):
        batch.append(result)
        received += 1
        if received == predictor.counts.images + predictor.counts.errors:
            yield batch
            batch = []
