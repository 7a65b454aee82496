"""Predictors of a group of processes against that of one process with the same batches."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import ProcessGroup

import ramen
from ramen import testing
from ramen.methods import _saved_folder
from ramen.methods._base import Method
from ramen.serve.predictor import Counts
from ramen.serve.result import Result
from tests.helpers.process_team import ProcessTeam
from tests.helpers.slow_tests import RUN_SLOW_TESTS

PARAMETERS = {"ramen": {"capacity": 6, "topk": 2, "codec": "int8"}, "note": {"memory": 6}}
BATCH = 5
IMAGES = torch.randint(0, 256, (28, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def sources(start: int = 0, stop: int = len(IMAGES)) -> list[tuple[str, object]]:
    """Images, some of which are none: those of the third batch altogether."""
    bad = (4, *range(2 * BATCH, 3 * BATCH), 17)
    return [(f"{n}", b"no image" if n in bad else IMAGES[n]) for n in range(start, stop)]


def method(group: ProcessGroup | None, name: str = "ramen") -> Method:
    created = ramen.create(name, testing.small_classifier(), group=group, **PARAMETERS.get(name, {}))
    if name == "ramen":
        created.memory.accumulate = torch.float64  # then sums do not depend on their order
    return created


def classified(
    group: ProcessGroup | None,
    given: list[tuple[str, object]],
    name: str = "ramen",
    store: str | None = None,
    **options: Any,
) -> tuple[tuple[Result, ...], list[Result], Counts]:
    """What was resumed, all results, and their counts."""
    with ramen.Predictor(method(group, name), store, batch_size=BATCH, **options) as predictor:
        return predictor.resumed, list(predictor.classify(given)), predictor.counts


def assert_same(found: list[Result], expected: list[Result]) -> None:
    """The same but for the rounding of passes with batches of another size."""
    for field in ("key", "label", "zero_shot_label", "adapted", "support", "state_version", "error"):
        assert [getattr(one, field) for one in found] == [getattr(one, field) for one in expected], field
    for field in ("probability", "entropy", "zero_shot_entropy"):
        values = [[getattr(one, field) or 0.0 for one in results] for results in (found, expected)]
        assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_results_are_those_of_one_process(team: ProcessTeam, processes: int) -> None:
    _, expected, counts = classified(None, sources())
    assert (counts.images, counts.errors) == (21, 7)
    for _, found, their_counts in team.run(classified, sources(), processes=processes):
        assert_same(found, expected)
        assert their_counts == counts


def decoded_by_workers(group: ProcessGroup) -> Any:
    # the team's processes are daemons, which may not have children
    multiprocessing.current_process()._config["daemon"] = False
    return classified(group, sources(), "note", workers=1 if RUN_SLOW_TESTS else 0)


def test_other_methods_and_decoding_processes(team: ProcessTeam) -> None:
    _, expected, _ = classified(None, sources(), "note")
    for _, found, _ in team.run(decoded_by_workers, processes=2):
        assert_same(found, expected)


def one_by_one(group: ProcessGroup | None) -> list[Result]:
    with ramen.Predictor(method(group), batch_size=BATCH) as predictor:
        answers = [predictor.classify_one(source) for source in sources(0, 6)]
        return [*answers, predictor.classify_one([])]


def test_single_images(team: ProcessTeam) -> None:
    expected = one_by_one(None)
    assert [one.error is None for one in expected] == [True] * 4 + [False, True, False]
    for found in team.run(one_by_one, processes=3):
        assert_same(found, expected)


# -- what goes wrong --------------------------------------------------------------------------------


def message(group: ProcessGroup, kind: str) -> str:
    """The error of a group whose second process does something else."""
    given: object = sources()
    if group.rank() == 1:
        given = {"fewer": sources(0, 3), "others": sources(1), "raises": raising()}[kind]
    try:
        with ramen.Predictor(method(group), batch_size=BATCH) as predictor:
            list(predictor.classify(given))
    except (ramen.GroupError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def raising() -> Iterator[object]:
    yield from sources(0, BATCH)
    raise OSError("the camera is gone")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("fewer", ["has 5 in process 0, and 3 in process 1", "has 3 in process 1, and 5 in process 0"]),
        ("others", ["has 5 in process 0, and 5 in process 1, with other keys", "with other keys"]),
        ("raises", ["failed in process 1 of the group: OSError: the camera", "OSError: the camera is gone"]),
    ],
)
def test_sources_must_be_the_same(team: ProcessTeam, kind: str, expected: list[str]) -> None:
    messages = team.run(message, kind, processes=3)
    assert expected[0] in messages[0]
    assert expected[1] in messages[1]
    assert messages[2] != "nothing"


def delayed(group: ProcessGroup) -> str:
    try:
        ramen.Predictor(method(group), max_delay=1.0)
    except ValueError as error:
        return str(error)
    return "nothing"


def test_clocks_make_no_batches(team: ProcessTeam) -> None:
    assert "max_delay must be None in a group" in team.run(delayed, processes=1)[0]


def failing_method(group: ProcessGroup) -> str:
    created = method(group)

    def fail(*given: object) -> None:
        raise ArithmeticError("it cannot adapt")

    created.adapt = fail  # type: ignore[assignment]
    try:
        with ramen.Predictor(created, batch_size=BATCH) as predictor:
            list(predictor.classify(sources()))
    except ArithmeticError as error:
        return str(error)
    return "nothing"


def test_an_error_of_the_method_is_raised(team: ProcessTeam) -> None:
    assert team.run(failing_method, processes=2) == ["it cannot adapt"] * 2


# -- stores -----------------------------------------------------------------------------------------


def test_a_state_passes_from_any_number_of_processes_to_any_other(team: ProcessTeam, tmp_path: Path) -> None:
    store = str(tmp_path / "state")
    _, expected, _ = classified(None, sources())
    found: list[Result] = []
    for part, processes in enumerate((3, None, 2, 1, None, 4)):
        own = sources(BATCH * part, min(len(IMAGES), BATCH * (part + 1)))
        if processes is None:
            resumed, results, _ = classified(None, own, store=store)
        else:
            resumed, results, _ = team.run(classified, own, "ramen", store, processes=processes)[0]
        # a batch without images teaches nothing, and is not remembered
        before = found[-BATCH:] if part != 3 else found[-2 * BATCH : -BATCH]
        assert list(resumed) == before
        found += results
        names = {path.name for path in Path(store).iterdir()}
        if processes is None and part != 2:
            assert names == {"segment-00000001.log"}
        elif part not in (2, 3):
            assert names == {"group"}
    assert_same(found, expected)


def refused_count(group: ProcessGroup | None, store: str, learn: bool) -> int:
    images = [("a", IMAGES[0]), ("b", IMAGES[1]), ("c", IMAGES[2])]
    created = method(group)
    with ramen.Predictor(created, store, batch_size=3) as predictor:
        if learn:
            adapt = created.adapt

            def refusing(images: Any, usable: Any) -> Any:
                return adapt(images, torch.zeros_like(usable))

            created.adapt = refusing  # type: ignore[method-assign]
            list(predictor.classify(images))
        return predictor.counts.refused if learn else created.images_refused


def test_what_was_refused_is_counted_once(team: ProcessTeam, tmp_path: Path) -> None:
    store = str(tmp_path / "state")
    assert refused_count(None, store, True) == 3
    assert team.run(refused_count, store, False, processes=3) == [3, 0, 0]
    assert team.run(refused_count, store, True, processes=3) == [6] * 3
    assert refused_count(None, store, False) == 6


def opening(group: ProcessGroup, store: str, name: str) -> str:
    try:
        ramen.Predictor(method(group, name), store).close()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_stores_that_cannot_be_used(team: ProcessTeam, tmp_path: Path) -> None:
    store = tmp_path / "state"
    team.run(classified, sources(0, 5), "ramen", str(store), processes=2)
    for text in team.run(opening, str(store), "note", processes=2):
        assert "the store cannot be used, and stays as it is" in text
    with pytest.raises(ValueError, match="stays as it is"):
        ramen.Predictor(method(None, "note"), store)
    for text in team.run(opening, "s3://bucket/state", "ramen", processes=2):
        assert "store must be a folder that all processes of the group see, got the URL" in text
    with ramen.Predictor(method(None), tmp_path / "used"):
        texts = team.run(opening, str(tmp_path / "used"), "ramen", processes=2)
        assert "LockedError" in texts[0]
        assert "PeerFailedError: opening the store failed in process 0" in texts[1]
    share = next((store / "group").glob("*-1-of-2.*"))
    share.write_bytes(share.read_bytes()[:-1] + b"?")
    for text in team.run(opening, str(store), "ramen", processes=3):
        assert "damaged" in text
    with pytest.raises(ValueError, match="damaged"):
        ramen.Predictor(method(None), store)
    assert _saved_folder.holds_state(store / "group")


def test_a_damaged_log_is_left_to_one_process(team: ProcessTeam, tmp_path: Path) -> None:
    store = tmp_path / "state"
    for start in (0, 5):
        classified(None, sources(start, start + 5), store=str(store))
    first = min(store.glob("segment-*.log"))
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 255
    first.write_bytes(content)
    for text in team.run(opening, str(store), "ramen", processes=2):
        assert "the store is damaged" in text
        assert "One process repairs it" in text
    with ramen.Predictor(method(None), store) as predictor:
        assert predictor.recovered is not None
    assert team.run(opening, str(store), "ramen", processes=2) == ["nothing"] * 2


def no_room(group: ProcessGroup, store: str) -> tuple[int, int]:
    """A disk that is full in one process, for the first batches."""
    write, full = _saved_folder._saved_state.write_file, [group.rank() == 1]

    def write_if_possible(path: Any, state: Any) -> None:
        if full[0]:
            raise OSError(28, "No space left on device")
        write(path, state)

    _saved_folder._saved_state.write_file = write_if_possible
    try:
        with ramen.Predictor(method(group), store, batch_size=BATCH) as predictor:
            found = list(predictor.classify(sources(0, 10)))
            failures = predictor._store.failures
            full[0] = False
    finally:
        _saved_folder._saved_state.write_file = write
    return len(found), failures


def test_a_full_disk_costs_no_answer(team: ProcessTeam, tmp_path: Path) -> None:
    assert team.run(no_room, str(tmp_path), processes=2) == [(10, 2)] * 2
    with ramen.Predictor(method(None), tmp_path) as predictor:
        assert predictor.method.images_seen == 9


def unfinished(group: ProcessGroup, store: str) -> int:
    """An error after the second batch: what was learned since the last snapshot is not written."""
    try:
        with ramen.Predictor(method(group), store, batch_size=BATCH, save_every=1000) as predictor:
            for number, _ in enumerate(predictor.classify(sources())):
                if number == 2 * BATCH - 1:
                    raise ArithmeticError
    except ArithmeticError:
        return len(os.listdir(store))
    return -1


def test_after_an_error_the_last_snapshot_stays(team: ProcessTeam, tmp_path: Path) -> None:
    team.run(classified, sources(0, 5), "ramen", str(tmp_path), processes=2)
    assert team.run(unfinished, str(tmp_path), processes=2)[1] >= 1
    with ramen.Predictor(method(None), tmp_path) as predictor:
        assert predictor.method.images_seen == 4
