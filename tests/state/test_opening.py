"""Stores that are damaged: what is sound is used, nothing wrong is ever loaded, and the next start works."""

import os
import random
import shutil

import pytest
import torch

from ramen.state import SaveTimes, StateStore, open_store
from ramen.state.log import Log
from tests.state.streams import assert_same_state, batches, make, results, run

FLIPS = 1000 if os.environ.get("RAMEN_SLOW_TESTS") else 40


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A store of several segments, and every entry that was ever in it: number to its row."""
    folder, method, entries = tmp_path_factory.mktemp("written"), make(), {}
    store = open_store(folder, method)
    for batch in batches(400):
        method.predict(batch)
        store.save(results(len(batch), method.images_seen))
        entries |= rows(method.state_dict())
    store.close()
    assert len(list(folder.glob("segment-*.log"))) == 2  # one that was tidied, and what came since
    return folder, method.state_dict(), entries


def rows(state):
    """Each entry's number, and everything that is stored of it."""
    names = ("embeddings", "gradients", "scales", "entropies", "tags")
    columns = [state[f"content.{name}"] for name in names]
    return {
        int(number): b"".join(column[row].flatten().view(torch.uint8).numpy().tobytes() for column in columns)
        for row, number in enumerate(state["content.numbers"])
        if row
    }


def copied(folder, target):
    shutil.copytree(folder, target)
    return target


def segments(folder):
    return sorted(folder.glob("segment-*.log"))


def test_every_flipped_byte_is_noticed_and_nothing_wrong_is_loaded(written, tmp_path):
    folder, whole, entries = written
    draw = random.Random(0)
    for flip in range(FLIPS):
        damaged = copied(folder, tmp_path / str(flip))
        path = draw.choice(segments(damaged))
        data = bytearray(path.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        method = make()
        store = open_store(damaged, method)
        assert store.recovered is not None
        found = rows(method.state_dict())
        assert found.items() <= entries.items()
        assert len(found) >= len(rows(whole)) - 20  # one record, with the rows that were moved into it
        run(method, store, batches(10, seed=1))
        store.close()
        again = make()
        store = open_store(damaged, again)
        assert store.recovered is None  # repaired for good
        assert_same_state(method.state_dict(), again.state_dict())
        store.close()
        shutil.rmtree(damaged)


def test_an_end_of_any_length_is_cut_off(written, tmp_path):
    folder, _, entries = written
    last = segments(folder)[-1]
    size, draw = last.stat().st_size, random.Random(1)
    for attempt in range(FLIPS // 4):
        damaged = copied(folder, tmp_path / str(attempt))
        with (damaged / last.name).open("r+b") as file:
            length = draw.randrange(size)
            file.truncate(length)
            file.write(bytes(draw.choice((0, 100))))  # some file systems fill a lost end with zeros
        method = make()
        open_store(damaged, method).close()
        assert rows(method.state_dict()).items() <= entries.items()
        again = make()
        store = open_store(damaged, again)
        assert store.recovered is None
        store.close()
        assert_same_state(method.state_dict(), again.state_dict())


def test_a_missing_segment_is_noticed(written, tmp_path):
    folder, _, entries = written
    damaged = copied(folder, tmp_path / "damaged")
    segments(damaged)[0].unlink()
    method = make()
    store = open_store(damaged, method)
    assert "lacks" in store.recovered
    assert rows(method.state_dict()).items() <= entries.items()
    store.close()


def test_what_is_damaged_is_kept_aside_and_does_not_pile_up(written, tmp_path):
    folder = copied(written[0], tmp_path / "damaged")
    for _ in range(3):
        path = segments(folder)[0]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data + b"RAMENREC")
        method = make()
        store = open_store(folder, method)
        assert "kept as" in store.recovered
        assert len(list(folder.glob("*.damaged"))) == 1
        run(method, store, batches(20, seed=2))
        store.close()


@pytest.mark.parametrize("step", ["replace_up_to", "remove"])
def test_tidying_that_is_killed_changes_nothing(tmp_path, step):
    """Before the new segment is there, and before the old ones are gone."""

    class Killed(Log):
        pass

    def stop(self, *given):
        raise OSError("killed")

    setattr(Killed, step, stop)
    method = make()
    store = StateStore(Killed(tmp_path), method, SaveTimes("batch"))
    run(method, store, batches(500))
    store.flush()
    store.close()
    assert len(segments(tmp_path)) > 1
    again = make()
    store = open_store(tmp_path, again)
    assert store.recovered is None
    store.close()
    assert_same_state(method.state_dict(), again.state_dict())


@pytest.mark.parametrize("content", [b"", b"not a log", bytes(1000)])
def test_a_store_of_garbage_starts_empty(tmp_path, content):
    (tmp_path / "segment-00000001.log").write_bytes(content)
    (tmp_path / "segment-00000002.log").write_bytes(content)
    method = make()
    store = open_store(tmp_path, method)
    assert method.images_seen == 0
    assert (store.recovered is None) == (content == b"")
    run(method, store, batches(10))
    store.close()
    again = make()
    store = open_store(tmp_path, again)
    assert store.recovered is None
    store.close()
    assert again.images_seen == 10


def test_sound_bytes_of_a_nonsensical_state_are_not_loaded(tmp_path, monkeypatch):
    method = make()
    store = open_store(tmp_path, method)
    monkeypatch.setattr(method.memory, "unpatched", lambda: {"counts": torch.tensor([10**15] * 5)})
    method.predict(batches(5)[0])
    store.save(results(5, 5))
    store.close()
    again = make()
    store = open_store(tmp_path, again)
    assert "the state cannot be used" in store.recovered
    assert again.images_seen == 0
    store.close()
    open_store(tmp_path, make()).close()


def test_a_store_of_a_later_version_is_refused_and_left_alone(tmp_path, monkeypatch):
    method = make()
    store = open_store(tmp_path, method)
    monkeypatch.setattr("ramen.state.log.VERSION", 3)
    run(method, store, batches(5))
    store.close()
    monkeypatch.undo()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="the store is of version 3, this library reads up to 2"):
        open_store(tmp_path, make())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
