"""Follows what a stream has learned, while the processes that hold it are killed, and checks every answer."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ramen.client.operations import StreamAnswer
from ramen.serve.engine.in_thread import EngineInThread, Submitted
from tests.helpers.sent_images import sent
from tests.serve.engine.engines import PATIENCE


@dataclass
class LearnedHistory:
    """One client of a stream, which sends an image at a time.

    Attributes:
        learned: The images that the stream has learned from, as its answers show.
        lost: An image whose answer never came: it may have been learned from.
        answers: Each answer, with what had been learned by then.
        rollbacks: How many images were forgotten, each time that some were.
    """

    learned: list[int] = field(default_factory=list)
    lost: int | None = None
    answers: list[tuple[tuple[int, ...], StreamAnswer]] = field(default_factory=list)
    rollbacks: list[int] = field(default_factory=list)

    def add(self, seed: int, answer: StreamAnswer) -> None:
        """The answer for an image has come."""
        assert answer.result.error is None
        before = answer.result.state_version - 1
        if self.lost is not None and before == len(self.learned) + 1:
            self.learned.append(self.lost)
        self.lost = None
        assert before <= len(self.learned), "the state knows images that were never sent"
        if before < len(self.learned):
            self.rollbacks.append(len(self.learned) - before)
            del self.learned[before:]
        self.learned.append(seed)
        self.answers.append((tuple(self.learned), answer))


def check_answers(histories: Sequence[LearnedHistory], engine: EngineInThread) -> None:
    """Every answer is what ``engine``, which is never killed, says after the same images."""
    replays = [_replay(str(number), history, engine) for number, history in enumerate(histories)]
    for tickets in itertools.zip_longest(*replays):  # one image of each stream at a time: they share passes
        for ticket in tickets:
            if ticket is not None:
                ticket.future.result(PATIENCE)


def _replay(name: str, history: LearnedHistory, engine: EngineInThread) -> Iterator[Submitted]:
    """Tickets for the images that were learned from; each has been answered before the next is asked for."""
    previous: tuple[int, ...] = ()
    life = 0
    for learned, answer in history.answers:
        if learned[:-1] != previous:  # some were forgotten: begin again with those that were not
            life += 1
            for seed in learned[:-1]:
                yield engine.submit(f"{name}-{life}", sent(seed))
        ticket = engine.submit(f"{name}-{life}", sent(learned[-1]))
        yield ticket
        (expected,) = ticket.future.result()
        assert answer.result == expected.result
        np.testing.assert_array_equal(answer.probabilities, expected.probabilities)
        previous = learned
