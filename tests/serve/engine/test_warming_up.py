"""What is computed before the first request."""

import pytest
import torch

from ramen import testing
from ramen.memory.retrieval import Memory
from ramen.predict.answers import BatchAnswers, PendingAnswers, begin_together
from ramen.serve.engine import computing
from tests.serve.engine.engines import ask, engine, make


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Passes have few sizes; returns the images per ticket of each blank batch."""
    gpu = computing._batch_sizes
    monkeypatch.setattr(computing, "_batch_sizes", lambda settings, _: gpu(settings, torch.device("cuda")))
    begun: list[list[int]] = []
    plain = computing.Computing.begin_blank

    def begin(self, answers, tickets):
        begun.append(list(tickets))
        return plain(self, answers, tickets)

    monkeypatch.setattr(computing.Computing, "begin_blank", begin)
    return begun


def test_batches_of_every_size_and_no_trace_of_them(clf, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(clf, max_batch=6) as where:
        expected = [answer.result for n in range(3) for answer in ask(where, "a", n, n + 3)]
    begun = as_on_a_gpu(monkeypatch)
    with engine(clf, max_batch=6) as where:
        found = [answer.result for n in range(3) for answer in ask(where, "a", n, n + 3)]
        assert where.statistics().images == 6
    assert {sum(tickets) for tickets in begun} == set(range(1, 7))
    assert sum(begun[0]) == 6  # the largest first
    for size in (1, 2, 4, 6):
        assert sum(sum(tickets) == size for tickets in begun) > computing.CALLS_TO_RECORD
    assert [6] in begun
    assert [1, 5] in begun  # joined on their way
    assert [one.label for one in found] == [one.label for one in expected]
    assert [one.support for one in found] == [one.support for one in expected]


def test_what_is_not_necessary_is_left_out_if_it_takes_long(clf, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(computing, "_WARM_UP_SECONDS", -1.0)
    with engine(clf, max_batch=6):
        assert {sum(tickets) for tickets in begun} == {1, 2, 4, 6}


def test_few_of_many_counts() -> None:
    assert list(computing._other_counts([])) == []
    assert list(computing._other_counts([1, 2, 4, 5])) == [3]
    counts = list(computing._other_counts([2**n for n in range(11)]))
    assert len(counts) <= 2 * computing._MOST_COUNTS
    assert max(counts) < 1024


def test_nothing_on_a_cpu(clf, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.setattr(computing.Computing, "begin_blank", lambda *given: begun.append(given))
    monkeypatch.setattr(Memory, "rehearsal", lambda *given: begun.append(given))  # it would grow to its limit
    with engine(clf, max_batch=6):
        assert begun == []


def test_a_method_that_fails_is_no_reason_not_to_start(clf, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)

    def failing(*_):
        raise RuntimeError("no step")

    monkeypatch.setattr(type(make(clf)), "step", failing)
    with engine(clf, max_batch=2) as where:
        (answer,) = ask(where, "a", 0)
        assert answer.result.label is not None
        assert not answer.result.adapted


@pytest.mark.gpu
def test_nothing_is_allocated_or_pinned_afterwards() -> None:
    """For batches of any size, of a stream whose memory has its size."""
    with engine(testing.small_classifier(device="cuda"), max_batch=12, max_delay_ms=0.0) as where:
        for count in (12, 1):
            ask(where, "a", *range(count))
        before = counters()
        for count in (3, 7, 12, 5, 9, 2, 11):
            ask(where, "a", *range(count))
        assert counters() == before


def counters() -> tuple[int, int]:
    return torch.cuda.host_memory_stats()["num_host_alloc"], torch.cuda.memory_stats()["num_device_alloc"]


def test_answers_keep_no_pinned_memory(clf) -> None:
    """What a batch was fetched into is free as soon as its answers are made."""
    answers = BatchAnswers(make(clf), all_probabilities=True)
    pixels = torch.zeros(2, 3, *clf.image_size, dtype=torch.uint8)
    (pending,) = begin_together([answers], [answers._predict(pixels)])
    assert isinstance(pending, PendingAnswers)
    found = answers.finish(pending)
    assert found is not None
    assert found.probabilities is not None
    assert pending.probabilities is not None
    fetched = pending.probabilities.numpy()
    for own, row in zip(found.probabilities, fetched, strict=True):
        assert (own == row).all()
        assert own.ctypes.data != row.ctypes.data
