"""Whatever fails, images are answered: zero-shot if need be."""

from pathlib import Path
from typing import Any

import pytest
import torch

import ramen
from ramen import testing
from ramen.client.operations import ServerError
from ramen.serve.engine import computing
from ramen.serve.engine import engine as engine_module
from tests.helpers.sent_images import sent
from tests.serve.engine.engines import PATIENCE, ask, engine


def break_method(where, stream: str, error: Exception) -> None:
    """The stream's own work raises from now on."""
    method = where.engine._streams.known(stream).loaded.method

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    method.memory.stage = fail


def zero_shot(clf, *seeds: int) -> list[str]:
    images = clf.preprocess([torch.from_numpy(image.data).permute(2, 0, 1) for image in sent(*seeds)])
    return [clf.classes[int(label)] for label in ramen.create("ensemble", clf).predict(images).labels]


def test_a_method_that_fails_costs_its_stream_the_adaptation_and_nobody_the_answers(clf) -> None:
    with engine(clf, max_delay_ms=20.0) as where:
        ask(where, "broken", 1)
        ask(where, "sound", 1)
        break_method(where, "broken", RuntimeError("singular matrix"))
        tickets = [
            (where.submit("broken", sent(seed)), where.submit("sound", sent(seed))) for seed in range(2, 12)
        ]
        broken = [ticket.future.result(PATIENCE)[0].result for ticket, _ in tickets]
        sound = [ticket.future.result(PATIENCE)[0].result for _, ticket in tickets]
        assert not any(result.adapted for result in broken)
        assert all(result.error is None and result.support == 0 for result in broken)
        assert [result.label for result in broken] == zero_shot(clf, *range(2, 12))
        assert all(result.adapted for result in sound)
        assert (where.stream("broken").fallbacks, where.stream("broken").entries) == (10, 1)
        assert (where.stream("sound").fallbacks, where.stream("sound").entries) == (0, 11)
        assert where.statistics().fallbacks == 10


@pytest.mark.parametrize("error", [RuntimeError("cuda"), torch.OutOfMemoryError("no"), AssertionError()])
def test_if_the_shared_pass_fails_all_is_answered_zero_shot(clf, monkeypatch, error: Exception) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    with engine(clf, max_delay_ms=20.0) as where:
        ask(where, "a", 1)
        with monkeypatch.context() as patch:
            patch.setattr(computing, "predict_together", fail)
            tickets = [where.submit(name, sent(seed)) for seed in range(4) for name in "ab"]
            found = [ticket.future.result(PATIENCE)[0] for ticket in tickets]
        assert not any(answer.result.adapted for answer in found)
        assert [answer.result.label for answer in found[::2]] == zero_shot(clf, *range(4))
        assert all(answer.probabilities is not None and answer.id for answer in found)
        assert (where.stream("a").fallbacks, where.stream("a").entries) == (4, 1)
        assert all(answer.result.adapted for answer in ask(where, "a", 5))


def test_too_little_memory_for_the_whole_batch() -> None:
    own = testing.small_classifier()
    encode, sizes = own.encode, []

    def limited(images: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        sizes.append(len(images))
        if len(images) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return encode(images, *args, **kwargs)

    with engine(own) as where:
        ask(where, "a", 1)
        break_method(where, "a", torch.OutOfMemoryError("CUDA out of memory"))
        own.encode = limited
        found = ask(where, "a", *range(6))
    assert [answer.result.error for answer in found] == [None] * 6
    assert max(sizes) > 2


def test_if_nothing_can_be_computed_each_image_gets_an_error_and_the_engine_goes_on(monkeypatch) -> None:
    own = testing.small_classifier()

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no device")

    with engine(own) as where:
        ask(where, "a", 1)
        with monkeypatch.context() as patch:
            patch.setattr(computing, "predict_together", fail)
            patch.setattr(own, "encode", fail)
            (answer,) = ask(where, "a", 2)
        assert answer.result.error == "2 cannot be answered: RuntimeError: no device"
        assert (answer.id, answer.probabilities) == ("", None)
        assert where.stream("a").errors == 1
        assert ask(where, "a", 3)[0].result.adapted


def test_a_defect_of_the_engine_itself_does_not_stop_it(clf, monkeypatch) -> None:
    with engine(clf) as where:
        ask(where, "a", 1)
        with monkeypatch.context() as patch:
            patch.setattr(engine_module, "parts_of", None)
            ticket = where.submit("a", sent(2))
            with pytest.raises(ServerError, match="could not be answered"):
                ticket.future.result(PATIENCE)
        assert ask(where, "a", 3)[0].result.adapted
        assert where.statistics().waiting_images == 0


def test_a_disk_that_is_full_costs_no_answer(clf, tmp_path: Path, monkeypatch) -> None:
    def no_room(handle: int, piece: Any) -> int:
        raise OSError(28, "No space left on device")

    with engine(clf, state=str(tmp_path), save_every="batch") as where:
        ask(where, "a", 1)
        with monkeypatch.context() as patch:
            patch.setattr("ramen.state.log.os.write", no_room)
            assert all(ask(where, "a", seed)[0].result.adapted for seed in range(2, 6))
            with pytest.raises(ServerError, match="No space left"):
                where.snapshot("a")
            assert where.statistics().store_failures > 0
        where.snapshot("a")
    with engine(clf, state=str(tmp_path)) as where:
        assert where.stream("a").images == 5
        ask(where, "a", 9)
        assert where.stream("a").entries == 6


def test_a_stream_is_answered_though_its_folder_cannot_be_made(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path)) as where:
        (tmp_path / "streams" / "a").write_text("a file is in the way")
        first, second = ask(where, "a", 1)[0].result, ask(where, "a", 2)[0].result
        assert first.adapted
        assert second.state_version == 2
        assert where.statistics().store_failures > 0
        with pytest.raises(ServerError, match="cannot be written"):
            where.snapshot("a")
