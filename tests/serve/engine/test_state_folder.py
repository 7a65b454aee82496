"""Who owns the streams of a folder, and where they are."""

import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen.serve.engine.state_folder import owned, shard_of, stream_names
from ramen.utils.files import LockedError, file_lock
from tests.serve.engine.engines import ask, engine

NAMES = [f"camera-{number}" for number in range(15)]


def add(folder: Path, *names: str) -> None:
    for name in names:
        (folder / "streams" / name).mkdir(parents=True)
        (folder / "streams" / name / "stream.json").write_text(name)


def found(root: Path, shards: int) -> list[str]:
    """All streams, each of which is where it belongs and as it was."""
    names = []
    for shard in range(shards):
        with owned(root, shard, shards) as folder:
            for name in stream_names(folder):
                assert shard_of(name, shards) == shard
                assert (folder / "streams" / name / "stream.json").read_text() == name
                names.append(name)
    return sorted(names)


def test_streams_are_spread_evenly_by_their_names_alone() -> None:
    counts = Counter(shard_of(f"stream-{number}", 4) for number in range(2000))
    assert all(400 < counts[shard] < 600 for shard in range(4))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(deadline=None, max_examples=10)
def test_they_move_when_the_number_of_shards_changes(numbers: list[int]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        add(root, *NAMES)
        for shards in numbers:
            assert found(root, shards) == sorted(NAMES)
        assert found(root, 1) == sorted(NAMES)
        assert not (root / "shards").exists()


def test_engines_go_on_with_what_streams_have_learned(clf, tmp_path: Path) -> None:
    results = {name: [] for name in NAMES[:6]}
    for seed, shards in enumerate((1, 2, 3, 1)):
        with ExitStack() as stack:
            wheres = [
                stack.enter_context(engine(clf, invariant=True, state=str(tmp_path), shard=(shard, shards)))
                for shard in range(shards)
            ]
            for name, answers in results.items():
                answers += ask(wheres[shard_of(name, shards)], name, seed)
    with engine(clf, invariant=True) as whole:
        for name, answers in results.items():
            expected = [ask(whole, name, seed)[0].result for seed in range(4)]
            assert [answer.result for answer in answers] == expected


def move_some(root: Path, shards: int, most: int) -> NoReturn:
    """Start with so many shards, and end as if killed after so many moves."""
    rename, left = os.rename, iter(range(most))
    os.rename = lambda *paths: rename(*paths) if next(left, None) is not None else os._exit(9)
    with owned(root, 0, shards):
        os._exit(0)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (3, 1)])
def test_whoever_is_killed_while_they_move_can_be_started_again(tmp_path: Path, before, after) -> None:
    """With the new number of shards, or with the old one."""
    for kill_after in range(0, len(NAMES), 7):
        for then in (after, before):
            root = tmp_path / f"{kill_after}-{then}"
            add(root, *NAMES)
            assert found(root, before) == sorted(NAMES)
            child = os.fork()
            if child == 0:
                move_some(root, after, kill_after)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
            assert found(root, then) == sorted(NAMES)


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    with owned(tmp_path), pytest.raises(LockedError, match=rf"process {os.getpid()} .*{tmp_path}/lock"):
        found(tmp_path, 1)
    with ExitStack() as stack:
        for shard in range(2):
            stack.enter_context(owned(tmp_path, shard, 2))
        for shards in (1, 2, 3):
            with pytest.raises(LockedError, match=rf"process {os.getpid()} .*{tmp_path}/shards/1-of-2"):
                found(tmp_path, shards)
    assert found(tmp_path, 3) == []


def test_a_stream_that_a_service_of_version_0_2_has_is_not_moved(tmp_path: Path) -> None:
    add(tmp_path, "a")
    lock = tmp_path / "streams" / "a" / "lock"
    with file_lock(lock, "is using this store"), pytest.raises(LockedError, match=str(lock)):
        found(tmp_path, 2)
    assert found(tmp_path, 2) == ["a"]


def test_what_is_no_stream_stays_where_it_is(tmp_path: Path) -> None:
    add(tmp_path, ".hidden", "lost+found", "a")
    assert found(tmp_path, 2) == ["a"]
    assert (tmp_path / "streams" / "lost+found").exists()
